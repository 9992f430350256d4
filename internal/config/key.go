package config

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
	"github.com/dchest/siphash"
)

// appendPart appends s after its length, so that parts never run into each other.
func appendPart(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// counted is the value that e counts as: the pattern at share_threshold levels, except under an override.
func (m *Match) counted(i int, e *Entry) string {
	if m.Rule != nil && m.Rule.ShareThreshold {
		if p := m.Rule.path[i].shared(e); p != "" {
			return p
		}
	}
	return e.Value
}

// digest names the counter. Members of all versions must agree about it, and it says nothing of amounts, names or
// files: a limit that is changed in mid-window applies to the count as it stands.
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
	h0, h1 := siphash.Hash128(r.k0, r.k1, b)
	return [2]uint64{h0, h1}
}

// placeOwner decides which levels make the rule's owner string: those of shard_by, else the first variable one. When
// there is none the string is a text that all requests of the rule share.
func (r *RuleSpec) placeOwner() {
	for _, k := range r.Extension.ShardBy {
		r.ownerAt = append(r.ownerAt, levelOf(r.path, k))
	}
	for i := 0; len(r.ownerAt) == 0 && i < len(r.Levels); i++ {
		if r.Levels[i].Variable {
			r.ownerAt = []int{i}
		}
	}
	if len(r.ownerAt) > 0 {
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

// AppendName appends what people call the counter: k=v,k2=v2, with the patterns that values count as. Two counters may
// have one name. m is what Match found for the entries.
func (m *Match) AppendName(dst []byte, entries []Entry) []byte {
	for i := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, entries[i].Key...), '='), m.counted(i, &entries[i])...)
	}
	return dst
}

// AppendOwnerString appends the text whose hash is m.Owner: what Envoy must send as x-keyward-key so that its question
// arrives at the counter's owner. m is what Match found for the same domain and entries.
func (r *Rules) AppendOwnerString(dst []byte, domain string, entries []Entry, m *Match) []byte {
	return appendOwner(dst, domain, entries, m)
}

func ownerHash(domain string, entries []Entry, m *Match) uint64 {
	// The two common cases need no text.
	if p := m.placed; p != nil {
		switch len(p.ownerAt) {
		case 0:
			return p.ownerHash
		case 1:
			i := p.ownerAt[0]
			return xxhash.Sum64String(m.counted(i, &entries[i]))
		}
	}
	var space [digestSize]byte
	return xxhash.Sum64(appendOwner(space[:0], domain, entries, m))
}

func appendOwner(dst []byte, domain string, entries []Entry, m *Match) []byte {
	if p := m.placed; p != nil {
		if len(p.ownerAt) == 0 {
			return append(dst, p.ownerText...)
		}
		for n, i := range p.ownerAt {
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
