package lending

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/owner/internal/counter"
)

const (
	evaluateEvery = 500 * time.Millisecond

	defaultCapacity = 50_000 // requests per second, until SetLoad
	hotPart         = 0.05   // of the capacity
	heavyRate       = 200    // forwarded requests per second of one key above which this member requests a lease
	heavyPart       = 0.02   // and this fraction of all that it forwards
)

// LenderConfig configures a Lender. The fields are those of owner.Options.
type LenderConfig struct {
	BootID    uint64
	Seed      [2]uint64
	HotRate   float64
	NoHot     bool
	MaxLeases int
}

// Lender holds what the Leases of all shards share: its configuration, the member's load, and the modes of its routes.
type Lender struct {
	config LenderConfig

	capacity   atomic.Uint64 // float64 bits; requests per second
	overloaded atomic.Bool
	candidate  atomic.Uint32                          // requests in a tick that make a key a candidate
	heavy      atomic.Uint64                          // float64 bits; forwarded requests per second of one key
	modes      atomic.Pointer[map[uint64]hotkey.Mode] // by ring position; what routes set
	held       atomic.Int64                           // leases of other members' keys

	// The lock under which the owner processes messages (serial in owner.Node) guards the rest.
	machine     *handoff.Machine // for the members that process requests for leases
	evaluatedAt int64
	epoch       uint16
	mean        float64 // rate of the keys that were active in the last epoch, in requests per second
	active      float64 // their number
	evaluation  evaluation
}

// evaluation sums up the shards while Evaluate visits them.
type evaluation struct {
	baseline         hotkey.Baseline
	requests, active uint64
	forwarded        float64
}

// NewLender returns a Lender that requests leases from the peers of m.
func NewLender(m *handoff.Machine, c LenderConfig) *Lender {
	n := &Lender{config: c, machine: m}
	n.SetLoad(defaultCapacity, false)
	n.heavy.Store(math.Float64bits(heavyRate))
	return n
}

// SetLoad sets how many requests per second this machine could decide, and whether it is overloaded: then keys are hot
// at half the rate. It may be called concurrently with anything else.
func (n *Lender) SetLoad(capacity float64, overloaded bool) {
	n.capacity.Store(math.Float64bits(capacity))
	n.overloaded.Store(overloaded)
	n.candidate.Store(uint32(min(heatCount, max(1, n.hotThreshold()/4))))
}

// hotThreshold returns H_abs, in requests per second.
func (n *Lender) hotThreshold() float64 {
	h := n.config.HotRate
	if h <= 0 {
		h = hotPart * math.Float64frombits(n.capacity.Load())
	}
	if n.overloaded.Load() {
		h /= 2
	}
	return h
}

// SetRoutes makes the keys of the owner strings in rs always or never hot, as the modes of their routes require. hash
// is Envoy's hash. SetRoutes may be called concurrently with anything else.
func (n *Lender) SetRoutes(rs []hotkey.Route, hash func(string) uint64) {
	var modes map[uint64]hotkey.Mode
	for i := range rs {
		if m := rs[i].Mode; m == hotkey.Spread || m == hotkey.Dedicated || m == hotkey.Never {
			if modes == nil {
				modes = map[uint64]hotkey.Mode{}
			}
			modes[hash(rs[i].Owner)] = m
		}
	}
	if modes == nil {
		n.modes.Store(nil)
		return
	}
	n.modes.Store(&modes)
}

// routeMode returns the mode that a route sets for the keys at a ring position, or Auto.
func (n *Lender) routeMode(ringPos uint64) hotkey.Mode {
	if d := n.modes.Load(); d != nil {
		return (*d)[ringPos]
	}
	return hotkey.Auto
}

// isHot reports whether a key is hot: as a route for its ring position requires, or else as it was measured.
func (n *Lender) isHot(ringPos uint64, measured bool) bool {
	switch n.routeMode(ringPos) {
	case hotkey.Spread, hotkey.Dedicated:
		return true
	case hotkey.Never:
		return false
	}
	return measured
}

// StartEvaluation reports whether it is time to determine which keys are hot, which is so twice a second. Then the
// caller calls EvaluateHot of every Leases, and FinishEvaluation. A key at twice the threshold is hot within two
// seconds.
func (n *Lender) StartEvaluation(now int64) bool {
	if now-n.evaluatedAt < int64(evaluateEvery) && now >= n.evaluatedAt {
		return false
	}
	n.evaluatedAt = now
	epoch := uint16(now >> tickLength % 31 / 8)
	n.evaluation = evaluation{
		baseline: hotkey.Baseline{Mean: n.mean, Active: n.active, Absolute: n.hotThreshold(), EpochEnd: epoch != n.epoch},
	}
	n.epoch = epoch
	return true
}

// FinishEvaluation sets the thresholds for the next evaluation.
func (n *Lender) FinishEvaluation() {
	if x := &n.evaluation; x.active > 0 {
		n.mean, n.active = float64(x.requests)/float64(x.active)/hotkey.EpochSeconds, float64(x.active)
	}
	n.heavy.Store(math.Float64bits(max(heavyRate, heavyPart*n.evaluation.forwarded)))
}

// isLive reports whether that boot of a member is live, according to the cluster.
func (n *Lender) isLive(h lease.Holder) bool {
	p := n.machine.Peer(h.ID)
	return p != nil && p.BootID == h.BootID
}

// salt returns a number that differs between members and keys, by which they choose different times.
func (n *Lender) salt(key Key) uint64 { return counter.Mix(key[0] ^ n.config.BootID) }

// share returns the writer of what this boot admits without the owner.
func (n *Lender) share() uint64 { return n.config.BootID &^ 1 }
