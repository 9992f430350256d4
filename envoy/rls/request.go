package rls

import (
	"errors"

	"github.com/keyward/keyward/envoy/internal/wire"
	"github.com/keyward/keyward/internal/config"
)

// RequestLimits are the sizes up to which a request is decided by its rules. A request that exceeds one is answered
// OVER_LIMIT and counted; an error would make Envoy let it through. A zero field means its default.
type RequestLimits struct {
	Message     int // bytes of a complete request; default 1 MiB
	Value       int // bytes of a domain, key or value; default 64 KiB
	Descriptors int // default 256
	Entries     int // of one descriptor; default 64
}

func (b RequestLimits) withDefaults() RequestLimits {
	or := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&b.Message, 1<<20)
	or(&b.Value, 64<<10)
	or(&b.Descriptors, 256)
	or(&b.Entries, 64)
	return b
}

// excess names the limit that a request exceeded.
type excess uint8

// Values of excess.
const (
	within excess = iota // none
	excessMessage
	excessValue
	excessDescriptors
	excessEntries
	excesses
)

func (e excess) String() string {
	return [excesses]string{"", "message", "value", "descriptors", "entries"}[e]
}

// limitOverride is a limit in a descriptor, which replaces that of its rule.
type limitOverride struct {
	Limit      uint32
	Unit       int32 // envoy.type.v3.RateLimitUnit
	Multiplier uint32
	Set        bool // the descriptor has a limit
	Multiplied bool // the limit has a unit_multiplier
}

// Descriptor is one descriptor of a RateLimitRequest.
type Descriptor struct {
	Entries   []config.Entry
	Override  limitOverride
	Addend    uint64 // the hits of this descriptor
	HasAddend bool   // Addend replaces the hits of the request, even if it is 0
	Refund    bool   // is_negative_hits: the hits are refunded

	first int // index of its first entry in RateLimitRequest.entries
}

// RateLimitRequest is an envoy.service.ratelimit.v3.RateLimitRequest. Its strings are the received bytes, valid UTF-8
// or not, and share the memory of the decoded message. The request is valid until that memory changes.
type RateLimitRequest struct {
	Domain      string
	Descriptors []Descriptor
	HitsAddend  uint32
	Excess      excess // the first limit that is exceeded; what exceeds it is not kept

	entries []config.Entry // of all descriptors, in order
}

var errMalformed = errors.New("malformed rate limit request")

// Decode decodes a request in protobuf's wire format. It accepts what proto.Unmarshal accepts, and also invalid
// UTF-8: an odd byte in a client's header must not become an error, which would admit the request. A message that
// exceeds a limit is not decoded.
func (r *RateLimitRequest) Decode(b []byte, bounds RequestLimits) error {
	r.Domain, r.HitsAddend, r.Excess = "", 0, within
	r.Descriptors, r.entries = r.Descriptors[:0], r.entries[:0]
	if len(b) > bounds.Message {
		r.exceed(excessMessage)
		return nil
	}
	for len(b) > 0 {
		f, rest, ok := wire.Next(b)
		if !ok {
			return errMalformed
		}
		b = rest
		switch {
		case f.IsBytes(1):
			r.Domain = r.text(f.Bytes, bounds)
		case f.IsBytes(2):
			if !r.descriptor(f.Bytes, bounds) {
				return errMalformed
			}
		case f.IsVarint(3):
			r.HitsAddend = uint32(f.Varint)
		}
	}
	r.link()
	return nil
}

// link sets the entries of each descriptor, whose slice may have moved while it grew.
func (r *RateLimitRequest) link() {
	end := len(r.entries)
	for i := len(r.Descriptors) - 1; i >= 0; i-- {
		d := &r.Descriptors[i]
		d.Entries = r.entries[d.first:end:end]
		end = d.first
	}
}

func (r *RateLimitRequest) descriptor(b []byte, bounds RequestLimits) bool {
	d := Descriptor{first: len(r.entries)}
	keep := len(r.Descriptors) < bounds.Descriptors
	if !keep {
		r.exceed(excessDescriptors)
	}
	for len(b) > 0 {
		f, rest, ok := wire.Next(b)
		if !ok {
			return false
		}
		b = rest
		switch {
		case f.IsBytes(1):
			ok = r.entry(f.Bytes, bounds, keep, d.first)
		case f.IsBytes(2):
			ok = d.Override.decode(f.Bytes)
		case f.IsBytes(3):
			d.HasAddend = true
			ok = decodeWrapper(f.Bytes, &d.Addend)
		case f.IsVarint(4):
			d.Refund = f.Varint != 0
		}
		if !ok {
			return false
		}
	}
	if keep {
		r.Descriptors = append(r.Descriptors, d)
	}
	return true
}

func (r *RateLimitRequest) entry(b []byte, bounds RequestLimits, keep bool, first int) bool {
	var e config.Entry
	for len(b) > 0 {
		f, rest, ok := wire.Next(b)
		if !ok {
			return false
		}
		b = rest
		switch {
		case f.IsBytes(1):
			e.Key = r.text(f.Bytes, bounds)
		case f.IsBytes(2):
			e.Value = r.text(f.Bytes, bounds)
		}
	}
	switch {
	case !keep:
	case len(r.entries)-first >= bounds.Entries:
		r.exceed(excessEntries)
	default:
		r.entries = append(r.entries, e)
	}
	return true
}

func (r *RateLimitRequest) text(b []byte, bounds RequestLimits) string {
	if len(b) > bounds.Value {
		r.exceed(excessValue)
		return ""
	}
	return wire.Text(b)
}

func (r *RateLimitRequest) exceed(e excess) {
	if r.Excess == within {
		r.Excess = e
	}
}

func (o *limitOverride) decode(b []byte) bool {
	o.Set = true
	for len(b) > 0 {
		f, rest, ok := wire.Next(b)
		if !ok {
			return false
		}
		b = rest
		switch {
		case f.IsVarint(1):
			o.Limit = uint32(f.Varint)
		case f.IsVarint(2):
			o.Unit = int32(f.Varint)
		case f.IsBytes(3):
			v := uint64(o.Multiplier)
			if !decodeWrapper(f.Bytes, &v) {
				return false
			}
			o.Multiplied, o.Multiplier = true, uint32(v)
		}
	}
	return true
}

// decodeWrapper decodes a google.protobuf.UInt64Value or UInt32Value into v. It leaves v unchanged if the message has
// no value, so that a repeated message is merged.
func decodeWrapper(b []byte, v *uint64) bool {
	for len(b) > 0 {
		f, rest, ok := wire.Next(b)
		if !ok {
			return false
		}
		b = rest
		if f.IsVarint(1) {
			*v = f.Varint
		}
	}
	return true
}
