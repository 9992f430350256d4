package rlqs

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/keyward/keyward/internal/config"
)

// usageReport is a decoded envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports. Its strings share the memory of
// the message and are valid as long as that.
type usageReport struct {
	domain  string
	usages  []reportedUsage
	entries []config.Entry // of all ids
}

// reportedUsage is the usage of one bucket.
type reportedUsage struct {
	id              []config.Entry // sorted by name, which is unique
	first           int            // index of the id in usageReport.entries
	allowed, denied uint64
	seconds         int64 // of the time since the report before
	nanos           int32
}

// elapsed returns the time since the report before. A negative one becomes 0, and one that is too long the longest.
func (u *reportedUsage) elapsed() time.Duration {
	if u.seconds > math.MaxInt64/int64(time.Second)-2 {
		return math.MaxInt64
	}
	return max(0, time.Duration(max(u.seconds, -3))*time.Second+time.Duration(u.nanos))
}

var (
	errMalformed = errors.New("malformed usage reports")
	errNoID      = errors.New("usage without a bucket id")
	errEntries   = errors.New("a bucket id has too many entries")
	errUsages    = errors.New("too many buckets in a message")
)

const (
	maxEntries    = 64     // of a bucket id
	maxUsages     = 20_000 // of a message
	maxAllEntries = 60_000 // of all bucket ids of a message
)

// decode decodes a message. It keeps all bytes of strings, valid UTF-8 or not, as rls does.
func (r *usageReport) decode(b []byte) error {
	r.domain, r.usages, r.entries = "", r.usages[:0], r.entries[:0]
	for len(b) > 0 {
		f, ok := nextField(&b)
		if !ok {
			return errMalformed
		}
		switch {
		case f.is(1, protowire.BytesType):
			r.domain = textOf(f.bytes)
		case f.is(2, protowire.BytesType):
			if err := r.usage(f.bytes); err != nil {
				return err
			}
		}
	}
	end := len(r.entries)
	for i := len(r.usages) - 1; i >= 0; i-- { // r.entries may have moved while it grew
		u := &r.usages[i]
		u.id = r.entries[u.first:end:end]
		end = u.first
	}
	for i := range r.usages {
		u := &r.usages[i]
		if u.id = unique(u.id); len(u.id) == 0 {
			return errNoID
		}
	}
	return nil
}

// unique sorts the entries of a map by name, and keeps the last of those with equal names.
func unique(id []config.Entry) []config.Entry {
	slices.SortStableFunc(id, func(a, b config.Entry) int { return strings.Compare(a.Key, b.Key) })
	kept := id[:0]
	for i := range id {
		if i+1 == len(id) || id[i+1].Key != id[i].Key {
			kept = append(kept, id[i])
		}
	}
	return kept
}

func (r *usageReport) usage(b []byte) error {
	if len(r.usages) == maxUsages {
		return errUsages
	}
	u := reportedUsage{first: len(r.entries)}
	for len(b) > 0 {
		f, ok := nextField(&b)
		if !ok {
			return errMalformed
		}
		switch {
		case f.is(1, protowire.BytesType):
			if err := r.bucketID(f.bytes, u.first); err != nil {
				return err
			}
		case f.is(2, protowire.BytesType):
			ok = u.duration(f.bytes)
		case f.is(3, protowire.VarintType):
			u.allowed = min(f.varint, MaxReported)
		case f.is(4, protowire.VarintType):
			u.denied = min(f.varint, MaxReported)
		}
		if !ok {
			return errMalformed
		}
	}
	r.usages = append(r.usages, u)
	return nil
}

// bucketID decodes a BucketId, whose entries begin at r.entries[first].
func (r *usageReport) bucketID(b []byte, first int) error {
	for len(b) > 0 {
		f, ok := nextField(&b)
		if !ok {
			return errMalformed
		}
		if !f.is(1, protowire.BytesType) {
			continue
		}
		e, ok := decodeEntry(f.bytes)
		switch {
		case !ok:
			return errMalformed
		case len(r.entries)-first == maxEntries:
			return errEntries
		case len(r.entries) == maxAllEntries:
			return errUsages
		}
		r.entries = append(r.entries, e)
	}
	return nil
}

// decodeEntry decodes an entry of a map of strings.
func decodeEntry(b []byte) (e config.Entry, ok bool) {
	for len(b) > 0 {
		f, ok := nextField(&b)
		switch {
		case !ok:
			return e, false
		case f.is(1, protowire.BytesType):
			e.Key = textOf(f.bytes)
		case f.is(2, protowire.BytesType):
			e.Value = textOf(f.bytes)
		}
	}
	return e, true
}

// duration decodes a google.protobuf.Duration.
func (u *reportedUsage) duration(b []byte) bool {
	for len(b) > 0 {
		f, ok := nextField(&b)
		switch {
		case !ok:
			return false
		case f.is(1, protowire.VarintType):
			u.seconds = int64(f.varint)
		case f.is(2, protowire.VarintType):
			u.nanos = int32(f.varint)
		}
	}
	return true
}

func textOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// wireField is a field of the wire format: a varint, bytes, or a value to be skipped.
type wireField struct {
	bytes  []byte
	varint uint64
	num    protowire.Number
	typ    protowire.Type
}

func (f *wireField) is(num protowire.Number, typ protowire.Type) bool {
	return f.num == num && f.typ == typ
}

// nextField cuts the next field off b.
func nextField(b *[]byte) (f wireField, ok bool) {
	num, typ, n := protowire.ConsumeTag(*b)
	if n < 0 || num > protowire.MaxValidNumber {
		return f, false
	}
	f.num, f.typ = num, typ
	rest := (*b)[n:]
	switch typ {
	case protowire.VarintType:
		f.varint, n = protowire.ConsumeVarint(rest)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(rest)
	default:
		n = protowire.ConsumeFieldValue(num, typ, rest)
	}
	if n < 0 {
		return f, false
	}
	*b = rest[n:]
	return f, true
}
