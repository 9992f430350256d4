package config

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
	"github.com/dchest/siphash"
)

// appendPart appends s with its length in front, so that no two sequences of parts have the same bytes.
func appendPart(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// counted returns the value under which e is counted: the pattern at share_threshold levels and for tenants, except
// under an override.
func (m *Match) counted(i int, e *Entry) string {
	if m.Rule == nil || !m.Rule.SharesCounter {
		return e.Value
	}
	n := m.Rule.path[i]
	if f := m.Rule.Extension.Fair; f != nil && f.level == i {
		return n.patternOf(e)
	}
	if p := n.shared(e); p != "" {
		return p
	}
	return e.Value
}

// digest identifies the counter. Members of all versions must compute the same one. It does not depend on amounts,
// names or files, so a limit that changes within a window applies to the existing count.
func (r *Rules) digest(d *domain, entries []Entry, m *Match) [2]uint64 {
	var space [digestSize]byte
	b := append(space[:0], d.head...)
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for i := range entries {
		b = appendPart(b, entries[i].Key)
		b = appendPart(b, m.counted(i, &entries[i]))
	}
	b = append(b, byte(m.Limit.Algorithm))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Limit.Window))
	k0, k1 := r.k0, r.k1
	if m.Rule != nil && m.Rule.Extension.Federation != nil {
		k0, k1 = r.f0, r.f1
	}
	h0, h1 := siphash.Hash128(k0, k1, b)
	return [2]uint64{h0, h1}
}

// AppendSharedName appends the name of the counter in envoyproxy/ratelimit, without the start of the window: all of
// "prefixdomain_key_value_". m is the result of Match for the same domain and entries.
func (r *Rules) AppendSharedName(dst []byte, domain string, entries []Entry, m *Match) []byte {
	dst = append(append(append(dst, r.prefix...), domain...), '_')
	for i := range entries {
		dst = append(append(dst, entries[i].Key...), '_')
		dst = append(append(dst, m.counted(i, &entries[i])...), '_')
	}
	return dst
}

// placeOwner selects the levels that form the rule's owner string: those of shard_by, or else the first variable one
// that is not the tenant's. If there is none, all requests of the rule have the same owner string.
//
// A level whose value is its key comes from a generic_key of the same name. Envoy Gateway names routes so, and those without
// hostnames end in an asterisk, which is no wildcard then. It is selected if no other level is variable.
func (r *RuleSpec) placeOwner() {
	for _, k := range r.Extension.ShardBy {
		r.ownerLevels = append(r.ownerLevels, levelOf(r.path, k))
	}
	f := r.Extension.Fair
	named := -1
	for i := 0; len(r.ownerLevels) == 0 && i < len(r.Levels); i++ {
		switch l := &r.Levels[i]; {
		case !l.Variable || f != nil && f.level == i:
		case l.Value != l.Key:
			r.ownerLevels = []int{i}
		case named < 0:
			named = i
		}
	}
	if len(r.ownerLevels) == 0 && named >= 0 {
		r.ownerLevels = []int{named}
	}
	if len(r.ownerLevels) > 0 {
		return
	}
	text := []byte(r.Domain)
	for _, l := range r.Levels {
		text = appendPair(text, l.Key, l.Value)
	}
	r.ownerText = string(text)
	r.ownerHash = xxhash.Sum64(text)
}

func appendPair(dst []byte, key, value string) []byte {
	dst = append(dst, '|')
	dst = append(dst, key...)
	dst = append(dst, '=')
	return append(dst, value...)
}

// AppendName appends the display name of the counter: k=v,k2=v2, with patterns for shared values. Two counters may have
// the same name. m is the result of Match for the entries.
func (m *Match) AppendName(dst []byte, entries []Entry) []byte {
	for i := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, entries[i].Key...), '='), m.counted(i, &entries[i])...)
	}
	return dst
}

// AppendOwnerString appends the text whose hash is m.Owner. Envoy sends it as x-keyward-key, so that the call reaches
// the counter's owner. m is the result of Match for the same domain and entries.
func (r *Rules) AppendOwnerString(dst []byte, domain string, entries []Entry, m *Match) []byte {
	return appendOwner(dst, domain, entries, m)
}

func ownerHash(domain string, entries []Entry, m *Match) uint64 {
	// The two common cases do not need the string.
	if p := m.ownerRule; p != nil {
		switch len(p.ownerLevels) {
		case 0:
			return p.ownerHash
		case 1:
			i := p.ownerLevels[0]
			return xxhash.Sum64String(m.counted(i, &entries[i]))
		}
	}
	var space [digestSize]byte
	return xxhash.Sum64(appendOwner(space[:0], domain, entries, m))
}

func appendOwner(dst []byte, domain string, entries []Entry, m *Match) []byte {
	if p := m.ownerRule; p != nil {
		if len(p.ownerLevels) == 0 {
			return append(dst, p.ownerText...)
		}
		for n, i := range p.ownerLevels {
			if n > 0 {
				dst = append(dst, '|')
			}
			dst = append(dst, m.counted(i, &entries[i])...)
		}
		return dst
	}
	for i := range entries {
		if entries[i].Value != "" {
			return append(dst, entries[i].Value...)
		}
	}
	dst = append(dst, domain...)
	for i := range entries {
		dst = appendPair(dst, entries[i].Key, entries[i].Value)
	}
	return dst
}
