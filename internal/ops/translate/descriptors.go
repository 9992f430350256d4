package translate

import (
	"fmt"
	"strings"
)

// Amount is a limit for descriptors whose policy has none.
type Amount struct {
	Requests uint32
	Unit     string // one of Units
}

// described is a descriptor that a policy names completely, except for its limit.
type described struct {
	path    []entry
	actions []action
	at      field
}

// add adds an entry with its action.
func (d *described) add(key, value string, a action) {
	d.path, d.actions = append(d.path, entry{key, value}), append(d.actions, a)
}

// describe adds a descriptor to a domain. Its limit is that of the options for the key of the last entry.
func (t *translation) describe(d *domain, where string, from *described) {
	if len(from.path) == 0 {
		from.at.say(Invalid, "", "a descriptor without entries")
		return
	}
	l := d.insert(from.path, from.at)
	if l == nil {
		return
	}
	d.source(from.at.rule)
	d.sends(rateLimit{where: where, actions: from.actions})
	if l.limit != nil {
		return
	}
	last := from.path[len(from.path)-1].key
	amount, ok := t.options.Limits[last]
	if t.asked == nil {
		t.asked = map[string]bool{}
	}
	if t.asked[last] = true; !ok {
		amount, ok = t.options.Limits[""]
	}
	if ok {
		l.limit = &limit{requests: uint64(amount.Requests), unit: amount.Unit}
		return
	}
	l.comments = []string{"rate_limit: {unit: minute, requests_per_unit: 100}"}
	from.at.say(Missing, fmt.Sprintf("pass --limit %s=100/minute, or write rate_limit into the rules", last),
		"the policy has no amount: it is in the rules of the rate limit service")
}

// filterSettings adds settings of the rate-limit filter to the actions of a domain.
func (d *domain) filterSettings(settings ...string) {
	if len(settings) > 0 {
		d.filter = append(d.filter, "Envoy's rate limit filter: "+strings.Join(settings, ", "))
	}
}
