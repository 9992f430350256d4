package rlqs

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
)

// newBucket returns the bucket of an id, whose entries are sorted by name. It keeps no part of id.
func newBucket(m rls.RuleMatcher, key, domain string, id []config.Entry) *QuotaBucket {
	b := &QuotaBucket{Key: key, Domain: domain, Entries: make([]config.Entry, len(id))}
	for i, e := range id {
		b.Entries[i] = config.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(e.Value)}
	}
	rules := m.Rules()
	if rules == nil {
		return b
	}
	if !arrange(b.Entries) {
		switch rules.Order(domain, b.Entries) {
		case config.OrderNone:
			return b
		case config.OrderAmbiguous:
			b.Fit = FitAmbiguous
			return b
		}
	}
	r := m.Match(domain, b.Entries)
	b.Match = r.Match
	switch {
	case r.Limited && r.Match.Extension().Quota == nil:
		b.Fit = FitOwner
	case r.Limited:
		b.Fit, b.Request = FitLimited, r.Request
	case r.Shadow:
		b.Fit = FitShadow
	case r.Match.Kind == config.Unlimited:
		b.Fit = FitUnlimited
	}
	return b
}

// arrange puts the entries of a generated id into the descriptor's order and removes the positions from their names:
// 0.api_key, 1.path. If not every name has a position, or positions are missing, it returns false and changes nothing.
func arrange(id []config.Entry) bool {
	ordered := make([]config.Entry, len(id))
	seen := make([]bool, len(id))
	for _, e := range id {
		at, name, ok := strings.Cut(e.Key, ".")
		i, err := strconv.ParseUint(at, 10, 16)
		if !ok || err != nil || i >= uint64(len(id)) || seen[i] || len(at) > 1 && at[0] == '0' {
			return false
		}
		ordered[i], seen[i] = config.Entry{Key: name, Value: e.Value}, true
	}
	copy(id, ordered)
	return true
}

// appendKey appends the key of an id, whose entries are sorted by name.
func appendKey(b []byte, domain string, id []config.Entry) []byte {
	b = appendText(b, domain)
	for _, e := range id {
		b = appendText(appendText(b, e.Key), e.Value)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// encodeID returns an id as an envoy.service.rate_limit_quota.v3.BucketId.
func encodeID(id []config.Entry) (b []byte) {
	for _, e := range id {
		entry := appendField(appendField(nil, 1, []byte(e.Key)), 2, []byte(e.Value))
		b = appendField(b, 1, entry)
	}
	return b
}
