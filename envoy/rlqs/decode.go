package rlqs

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/envoy/internal/wire"
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
		f, rest, ok := wire.Next(b)
		if !ok {
			return errMalformed
		}
		b = rest
		switch {
		case f.IsBytes(1):
			r.domain = wire.Text(f.Bytes)
		case f.IsBytes(2):
			if err := r.usage(f.Bytes); err != nil {
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
		f, rest, ok := wire.Next(b)
		if !ok {
			return errMalformed
		}
		b = rest
		switch {
		case f.IsBytes(1):
			if err := r.bucketID(f.Bytes, u.first); err != nil {
				return err
			}
		case f.IsBytes(2):
			ok = u.duration(f.Bytes)
		case f.IsVarint(3):
			u.allowed = min(f.Varint, MaxReported)
		case f.IsVarint(4):
			u.denied = min(f.Varint, MaxReported)
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
		f, rest, ok := wire.Next(b)
		if !ok {
			return errMalformed
		}
		b = rest
		if !f.IsBytes(1) {
			continue
		}
		e, ok := decodeEntry(f.Bytes)
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
		f, rest, ok := wire.Next(b)
		if !ok {
			return e, false
		}
		b = rest
		switch {
		case f.IsBytes(1):
			e.Key = wire.Text(f.Bytes)
		case f.IsBytes(2):
			e.Value = wire.Text(f.Bytes)
		}
	}
	return e, true
}

// duration decodes a google.protobuf.Duration.
func (u *reportedUsage) duration(b []byte) bool {
	for len(b) > 0 {
		f, rest, ok := wire.Next(b)
		if !ok {
			return false
		}
		b = rest
		switch {
		case f.IsVarint(1):
			u.seconds = int64(f.Varint)
		case f.IsVarint(2):
			u.nanos = int32(f.Varint)
		}
	}
	return true
}
