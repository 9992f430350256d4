package rls

import (
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// Additions are the parts of a response that envoyproxy/ratelimit does not send. The zero value adds nothing.
type Additions struct {
	RetryAfter       bool   // response header Retry-After of a response that is over the limit
	RateLimitFields  bool   // response headers RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-10
	DecisionHeaders  bool   // response headers x-keyward-authority, x-keyward-path, x-keyward-reason and x-keyward-delay
	DecisionMetadata bool   // MetadataField of the dynamic metadata: authority, path, reason and delay
	DelayHeader      string // request header with the delay of a leaky bucket in milliseconds; "": none

	// Names of authorities and paths; required for DecisionHeaders and DecisionMetadata.
	Authority func(owner.Authority) string
	Path      func(owner.Path) string
}

// Names of the headers that Additions add.
const (
	headerRetryAfter      = "Retry-After"
	headerRateLimit       = "RateLimit"
	headerRateLimitPolicy = "RateLimit-Policy"
	headerAuthority       = "x-keyward-authority"
	headerPath            = "x-keyward-path"
	headerReason          = "x-keyward-reason"
	headerDelay           = "x-keyward-delay"
)

// reasonFairShare is the reason of a denial that leaves the rest of a limit to other tenants.
const reasonFairShare = "fair_share"

// IsAddition reports whether only Additions add the response header. LIMIT_RESET_HEADER may have the name Retry-After.
func IsAddition(header string) bool {
	return slices.Contains([]string{headerRetryAfter, headerRateLimit, headerRateLimitPolicy, headerAuthority, headerPath,
		headerReason, headerDelay}, header)
}

// MetadataField is the field of the dynamic metadata that DecisionMetadata adds.
const MetadataField = "keyward"

// active reports whether responses may get an addition.
func (a *Additions) active() bool {
	return a.RetryAfter || a.RateLimitFields || a.describes()
}

// describes reports whether a response describes its decision.
func (a *Additions) describes() bool {
	return a.DecisionHeaders || a.DecisionMetadata || a.DelayHeader != ""
}

// add adds to the response of c, which is complete otherwise.
func (a *Additions) add(c *Call, v *view) {
	r := &c.Response
	if a.RetryAfter && r.Code == OverLimit {
		r.Headers = append(r.Headers, responseHeader{headerRetryAfter, strconv.FormatInt(r.retryAfter(), 10)})
	}
	if a.RateLimitFields && !v.switches.Shadow {
		c.addRateLimitFields()
	}
	if a.describes() {
		a.describe(c)
	}
}

// retryAfter returns the seconds after which no descriptor that is over its limit denies another hit: the value that
// Envoy 1.40 computes itself. It is at least 1.
func (r *rateLimitResponse) retryAfter() int64 {
	longest := int64(1)
	for i := range r.Statuses {
		if s := &r.Statuses[i]; s.Code == OverLimit {
			longest = max(longest, s.Reset)
		}
	}
	return longest
}

// callSummary describes the decision of a call, whose descriptors may have been decided in different ways.
type callSummary struct {
	authority owner.Authority
	path      owner.Path
	delay     time.Duration // until the leaky buckets have drained what came before; 0: none
	decided   bool          // a descriptor has a limit, and so authority and path are set
	leaky     bool          // one of the limits is a leaky bucket
	fairShare bool          // all descriptors that deny the call leave the rest of their limits to other tenants
}

// exact lists the authorities from the most exact to the least exact.
var exact = [...]owner.Authority{owner.Full, owner.Escrow, owner.Cached, owner.Overflow, owner.Part, owner.Closed, owner.Static,
	owner.Share, owner.Open, owner.Shed}

// inexactness returns the position of an authority in exact. Others come last.
func inexactness(a owner.Authority) int {
	if i := slices.Index(exact[:], a); i >= 0 {
		return i
	}
	return len(exact)
}

// lessExact reports whether the decision a is less exact than t.
func (t *callSummary) lessExact(a *owner.Result) bool {
	if a.Authority == t.authority {
		return a.Path > t.path
	}
	return inexactness(a.Authority) > inexactness(t.authority)
}

// summary returns the least exact decision of c. If c is over the limit, only the descriptors that deny it count.
func (c *Call) summary() (t callSummary) {
	for i := range c.slots {
		l := &c.slots[i]
		if !l.counted() {
			continue
		}
		st, a := &c.Response.Statuses[i], &c.results[l.request]
		if l.match.Limit.Algorithm == limit.LeakyBucket {
			t.leaky = true
			t.delay = max(t.delay, delay(&c.requests[l.request], a))
		}
		if c.Response.Code == OverLimit && st.Code != OverLimit {
			continue
		}
		t.fairShare = st.Code == OverLimit && a.FairShare && (!t.decided || t.fairShare)
		if !t.decided || t.lessExact(a) {
			t.authority, t.path, t.decided = a.Authority, a.Path, true
		}
	}
	if c.Response.Code == OverLimit {
		t.delay = 0 // Retry-After applies
	}
	return t
}

// delay returns how long an admitted request would wait in the queue of a leaky bucket: until the hits before it have
// drained. It is rounded up to the time of one hit.
func delay(q *owner.Request, a *owner.Result) time.Duration {
	if a.Over || q.Op != owner.Take || q.Hits == 0 || q.Rule.Limit == 0 {
		return 0
	}
	before := float64(min(a.Before, uint64(q.Rule.Depth())))
	return time.Duration(before * float64(q.Rule.Window) / float64(q.Rule.Limit))
}

// describe adds how the call was decided.
func (a *Additions) describe(c *Call) {
	r, t := &c.Response, c.summary()
	if !t.decided {
		return
	}
	authority, path := a.Authority(t.authority), a.Path(t.path)
	millis := (t.delay + time.Millisecond - 1).Milliseconds()
	if a.DecisionHeaders {
		r.Headers = append(r.Headers, responseHeader{headerAuthority, authority}, responseHeader{headerPath, path})
		if t.fairShare {
			r.Headers = append(r.Headers, responseHeader{headerReason, reasonFairShare})
		}
		if t.leaky {
			text := strconv.FormatFloat(float64(millis)/1000, 'f', -1, 64)
			r.Headers = append(r.Headers, responseHeader{headerDelay, text})
		}
	}
	if a.DelayHeader != "" && millis > 0 {
		r.RequestHeaders = append(r.RequestHeaders, responseHeader{a.DelayHeader, strconv.FormatInt(millis, 10)})
	}
	if a.DecisionMetadata {
		d := decisionFields{authority: authority, path: path, leaky: t.leaky, delay: float64(millis) / 1000}
		if t.fairShare {
			d.reason = reasonFairShare
		}
		if r.Metadata == nil {
			r.buffer = d.append(r.buffer[:0])
			r.Metadata = r.buffer
		} else {
			r.Metadata = d.append(r.Metadata)
		}
	}
}

// decisionFields are the fields of MetadataField.
type decisionFields struct {
	authority, path string
	reason          string // of a denial; "" if the limit is used up
	leaky           bool   // delay is set
	delay           float64
}

// append appends MetadataField to an encoded google.protobuf.Struct.
func (d *decisionFields) append(b []byte) []byte {
	var buffer [128]byte
	fields := appendStructText(buffer[:0], "authority", d.authority)
	fields = appendStructText(fields, "path", d.path)
	if d.reason != "" {
		fields = appendStructText(fields, "reason", d.reason)
	}
	if d.leaky {
		fields = appendStructKey(fields, "delay", 9)
		fields = protowire.AppendTag(fields, 2, protowire.Fixed64Type)
		fields = protowire.AppendFixed64(fields, math.Float64bits(d.delay))
	}
	b = appendStructKey(b, MetadataField, 1+protowire.SizeBytes(len(fields)))
	b = appendLen(b, 5, len(fields))
	return append(b, fields...)
}

// appendStructKey appends the beginning of a field of an encoded google.protobuf.Struct: all but its
// google.protobuf.Value, which has the given size.
func appendStructKey(b []byte, key string, size int) []byte {
	b = appendLen(b, 1, sizeString(key)+1+protowire.SizeBytes(size))
	b = appendString(b, 1, key)
	return appendLen(b, 2, size)
}

func appendStructText(b []byte, key, text string) []byte {
	return appendString(appendStructKey(b, key, sizeString(text)), 3, text)
}
