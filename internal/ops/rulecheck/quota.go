package rulecheck

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// QuotaConditions are what bounds of rules with mechanism: quota depend on in addition.
type QuotaConditions struct {
	Envoys      uint64 // M; 0: as many as the rule says
	Connections uint64 // of callers to one Envoy
}

// Quantities that were measured with real Envoys. docs/bounds.md has the measurements.
const (
	jumpCost       = 8400 * time.Millisecond // of a limit's window, when the load moves from one Envoy to another
	refusedAtFirst = 3                       // requests for each connection in the round trip of the first assignment
	allowedAtFirst = 2                       // the same, with first: allow
	callersPart    = 50                      // 1/callersPart of the limit is kept for calls
)

// EnvoysOf returns the number of Envoys that spend the limit of r, or 0 if it is not known.
func (c *QuotaConditions) EnvoysOf(r *config.RuleSpec) uint64 {
	if c.Envoys == 0 && r.Extension.Quota != nil {
		return uint64(r.Extension.Quota.Envoys)
	}
	return c.Envoys
}

// quota adds the bounds of the hits that Envoys spend without calls. Those of calls for the same rule are in the other rows.
func (w *eventTable) quota() {
	q, x := &w.conditions.Quota, &w.Spec.Extension
	w.Envoys, w.Connections = max(1, q.EnvoysOf(w.Spec)), q.Connections
	each := mulDiv(w.Envoys, w.Connections, 1)
	w.add(w.under(free("Envoys spend the limit, and nothing fails"), term{"L/20", w.Limit / 20}, "if about L is requested"))
	w.add(w.under(free("the load moves between Envoys"), w.part("8.4s", jumpCost), "in that window"))
	if n := uint64(w.conditions.Members); n > 1 {
		one := w.Limit - (w.Limit-w.Limit/callersPart)/n
		w.add(w.under(free("one sidecar suddenly gets all requests"), term{"L - 49/50 L/N", one}, "in that window"))
	}
	w.first(each)
	if w.conditions.Members > 1 {
		replaced := 2 * w.conditions.Detection.Failover(w.conditions.Members)
		w.add(w.under(free("the owner crashes, for Envoys"), w.part(strings.ReplaceAll(seconds(replaced), " ", ""), replaced), "up to "+seconds(replaced)))
		w.add(w.under(free("a sidecar is cut off from the owner"), term{"L", w.Limit}, "while it is"))
	}
	w.add(w.under(free("an Envoy fails, or its stream breaks"), term{"L", w.Limit}, "its assignment, until the window ends"))
	w.add(w.under(free("a sidecar fails"), term{"L", w.Limit}, "what it has charged, until the window ends"))
	w.add(w.withoutSidecar(x))
	stopped := sum("an Envoy is stopped over the end of a window", term{"M x connections", each})
	if w.Spec.Limit.Algorithm == limit.FixedWindow {
		stopped.Event += " that the next one was not charged for"
	}
	w.add(stopped)
}

// free returns the bound of an event that admits nothing above the limit.
func free(event string) Bound { return sum(event, term{"0", 0}) }

// part returns the part of the limit that comes in a time.
func (w *eventTable) part(symbol string, t time.Duration) term {
	window := w.Spec.Limit.Window
	return term{fmt.Sprintf("L x min(1, %s/W)", symbol), mulDiv(w.Limit, uint64(min(t, window)), uint64(window))}
}

// first adds the cost of a key that Envoys do not have yet. each is the number of connections to all Envoys.
func (w *eventTable) first(each uint64) {
	if w.Spec.Extension.Quota.First == config.FirstAllow {
		w.add(sum("a new key (first: allow)", term{"M x 2 x connections", mulDiv(each, allowedAtFirst, 1)}))
		return
	}
	refused := term{"M x 3 x connections", mulDiv(each, refusedAtFirst, 1)}
	w.add(w.under(free("a new key (first: deny)"), refused, "for a round trip"))
}

// withoutSidecar returns the bound of a window of Envoys whose assignments have ended and whose sidecars are away.
func (w *eventTable) withoutSidecar(x *config.Extension) Bound {
	event := fmt.Sprintf("each window of Envoys without a sidecar (%s)", x.Degraded)
	const until = "while it is away"
	switch {
	case x.Degraded == policy.FailOpen:
		b := w.withTraffic(free(event), w.Spec.Limit.Window, math.MaxUint64)
		b.OverFormula = "rate x W"
		return b
	case x.Degraded == policy.FailClosed, x.Quota.Envoys == 0: // the generator writes a refusal without the number
		return w.under(free(event), term{"L", w.Limit}, until)
	}
	share := max(1, 2*w.Limit/uint64(x.Quota.Envoys))
	b := sum(event, term{"M x 2 L/envoys", mulDiv(w.Envoys, share, 1)})
	return w.under(b, term{"L - 2 L/envoys", w.Limit - min(w.Limit, share)}, until)
}
