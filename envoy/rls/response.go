package rls

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/keyward/keyward/internal/config"
)

// Code is an envoy.service.ratelimit.v3.rateLimitResponse.Code.
type Code uint8

// The codes that Keyward returns.
const (
	OK        Code = 1
	OverLimit Code = 2
)

// descriptorStatus is the status of one descriptor.
type descriptorStatus struct {
	Name      string // of the rule
	Reset     int64  // seconds; 0 is only sent with a limit
	Limit     uint32
	Burst     uint32 // size of a token bucket if it differs from Limit; else 0
	Remaining uint32
	Unit      config.Unit // with Times, the window; unknown if the window is no whole number of seconds
	Times     uint32      // number of units in the window
	Code      Code
	HasLimit  bool // Limit, Unit and Name are set
}

// responseHeader is a header that Envoy adds to its response, or to the request that it forwards.
type responseHeader struct{ Key, Value string }

// rateLimitResponse is an envoy.service.ratelimit.v3.rateLimitResponse.
type rateLimitResponse struct {
	Statuses       []descriptorStatus // one per descriptor, in order
	Headers        []responseHeader
	RequestHeaders []responseHeader // for the request that Envoy forwards
	Metadata       []byte           // an encoded google.protobuf.Struct; nil: none
	Code           Code

	buffer []byte // memory for Metadata, kept between calls
}

func (r *rateLimitResponse) reset() {
	clear(r.Statuses) // names must not keep old rules alive
	r.Statuses, r.Headers, r.RequestHeaders = r.Statuses[:0], r.Headers[:0], r.RequestHeaders[:0]
	r.Metadata, r.Code = nil, 0
}

// Append appends r in protobuf's wire format.
func (r *rateLimitResponse) Append(b []byte) []byte {
	b = appendVarint(b, 1, uint64(r.Code))
	for i := range r.Statuses {
		s := &r.Statuses[i]
		b = appendLen(b, 2, s.size())
		b = s.append(b)
	}
	b = appendHeaders(b, 3, r.Headers)
	b = appendHeaders(b, 4, r.RequestHeaders)
	if r.Metadata != nil {
		b = appendLen(b, 6, len(r.Metadata))
		b = append(b, r.Metadata...)
	}
	return b
}

func appendHeaders(b []byte, num protowire.Number, headers []responseHeader) []byte {
	for i := range headers {
		h := &headers[i]
		b = appendLen(b, num, sizeString(h.Key)+sizeString(h.Value))
		b = appendString(b, 1, h.Key)
		b = appendString(b, 2, h.Value)
	}
	return b
}

func (s *descriptorStatus) append(b []byte) []byte {
	b = appendVarint(b, 1, uint64(s.Code))
	if s.HasLimit {
		b = appendLen(b, 2, s.limitSize())
		b = appendVarint(b, 1, uint64(s.Limit))
		b = appendVarint(b, 2, uint64(s.Unit))
		b = appendString(b, 3, s.Name)
		if n := s.multiplier(); n > 0 {
			b = appendLen(b, 4, sizeVarint(n))
			b = appendVarint(b, 1, n)
		}
	}
	b = appendVarint(b, 3, uint64(s.Remaining))
	if s.timed() {
		b = appendLen(b, 4, sizeVarint(uint64(s.Reset)))
		b = appendVarint(b, 1, uint64(s.Reset))
	}
	return b
}

func (s *descriptorStatus) size() int {
	n := sizeVarint(uint64(s.Code)) + sizeVarint(uint64(s.Remaining))
	if s.HasLimit {
		n += 1 + protowire.SizeBytes(s.limitSize())
	}
	if s.timed() {
		n += 1 + protowire.SizeBytes(sizeVarint(uint64(s.Reset)))
	}
	return n
}

func (s *descriptorStatus) limitSize() int {
	n := sizeVarint(uint64(s.Limit)) + sizeVarint(uint64(s.Unit)) + sizeString(s.Name)
	if m := s.multiplier(); m > 0 {
		n += 1 + protowire.SizeBytes(sizeVarint(m))
	}
	return n
}

// timed reports whether Reset is sent.
func (s *descriptorStatus) timed() bool { return s.HasLimit || s.Reset > 0 }

// multiplier returns the limit's unit_multiplier, or 0 to omit it. Envoy uses 1 if it is absent.
func (s *descriptorStatus) multiplier() uint64 {
	if s.Times > 1 {
		return uint64(s.Times)
	}
	return 0
}

// appendPolicy appends the value of the limit header: the limit and, if its unit does not describe it completely, its
// window and burst, as in "10, 10;w=30;burst=20".
func (s *descriptorStatus) appendPolicy(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(s.Limit), 10)
	window := int64(s.Unit.Window()/time.Second) * int64(s.Times)
	if window == 0 || s.Times == 1 && s.Burst == 0 {
		return b
	}
	b = append(b, ", "...)
	b = strconv.AppendUint(b, uint64(s.Limit), 10)
	b = append(b, ";w="...)
	b = strconv.AppendInt(b, window, 10)
	if s.Burst > 0 {
		b = append(b, ";burst="...)
		b = strconv.AppendUint(b, uint64(s.Burst), 10)
	}
	return b
}

// The helpers below write fields with numbers below 16, whose tags take one byte. They omit zero values, as proto3
// does.

func appendLen(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	b = appendLen(b, num, len(s))
	return append(b, s...)
}

func sizeVarint(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func sizeString(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s))
}
