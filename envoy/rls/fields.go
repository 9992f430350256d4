package rls

import (
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// addRateLimitFields adds the headers RateLimit-Policy and RateLimit: one item for each rule that limits the call, in
// the order of the descriptors. If a rule limits several descriptors, the one with the fewest remaining hits counts.
// Rules in shadow mode limit nothing. A settlement of a hold comes when the request is over, so no client sees its fields.
func (c *Call) addRateLimitFields() {
	var policies, limits []byte
	for i := range c.slots {
		l := &c.slots[i]
		if !c.advertised(i) || c.isRepeated(i) {
			continue
		}
		st := &c.Response.Statuses[i]
		if len(policies) > 0 {
			policies, limits = append(policies, ", "...), append(limits, ", "...)
		}
		name := l.policyName()
		policies = append(appendQuoted(policies, name), ";q="...)
		policies = strconv.AppendUint(policies, uint64(l.match.Limit.Limit), 10)
		if l.match.Limit.Algorithm == limit.InFlight {
			policies = append(policies, `;qu="concurrent-requests"`...) // it has no window
		} else if w := l.match.Limit.Window; w >= time.Second && w%time.Second == 0 {
			policies = strconv.AppendInt(append(policies, ";w="...), int64(w/time.Second), 10)
		}
		if st.Burst > 0 {
			policies = strconv.AppendUint(append(policies, ";keyward-burst="...), uint64(st.Burst), 10)
		}
		limits = append(appendQuoted(limits, name), ";r="...)
		limits = strconv.AppendUint(limits, uint64(st.Remaining), 10)
		if l.match.Limit.Algorithm != limit.InFlight { // a slot is free when a request ends
			limits = strconv.AppendInt(append(limits, ";t="...), st.Reset, 10)
		}
	}
	if len(policies) == 0 {
		return
	}
	c.Response.Headers = append(c.Response.Headers, responseHeader{headerRateLimitPolicy, string(policies)},
		responseHeader{headerRateLimit, string(limits)})
}

// isRepeated reports whether another descriptor with the same policy as descriptor i has fewer hits left, or as many
// and comes first.
func (c *Call) isRepeated(i int) bool {
	name, left := c.slots[i].policyName(), c.Response.Statuses[i].Remaining
	for j := range c.slots {
		if s := &c.slots[j]; j == i || !c.advertised(j) || s.policyName() != name {
			continue
		}
		if n := c.Response.Statuses[j].Remaining; n < left || n == left && j < i {
			return true
		}
	}
	return false
}

// advertised reports whether the limit of descriptor i is one that clients must respect.
func (c *Call) advertised(i int) bool {
	l := &c.slots[i]
	if !l.counted() || l.match.Rule != nil && l.match.Rule.Shadow {
		return false
	}
	settles := l.mark.marked && l.mark.op != owner.Reserve // a settlement without an id became another operation
	return !settles && c.requests[l.request].Op <= owner.Reserve
}

// policyName returns the name of a counted slot's policy: the rule's own, or its key without the domain. A limit that
// comes with the descriptor and replaces no rule is called override.
func (l *slot) policyName() string {
	switch r := l.match.Rule; {
	case r == nil:
		return "override"
	case r.Name != "":
		return r.Name
	default:
		return strings.TrimPrefix(strings.TrimPrefix(r.FullKey, r.Domain), ".")
	}
}

// appendQuoted appends text as a String of RFC 9651. Characters that it cannot contain become _.
func appendQuoted(b []byte, text string) []byte {
	b = append(b, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r > '~':
			b = append(b, '_')
		default:
			b = append(b, byte(r))
		}
	}
	return append(b, '"')
}
