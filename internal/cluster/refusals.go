package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Refusal records that gossip from one address was rejected unread, for one reason.
type Refusal struct {
	From   netip.Addr
	Reason string // key, label, compressed, too_large or malformed
	At     time.Time
}

// maxRefusals limits what is remembered: any host that reaches the port can be rejected.
const maxRefusals = 8

// refusals remembers whose gossip was rejected last. It is safe for concurrent use.
type refusals struct {
	mu   sync.Mutex
	last []Refusal // guarded by mu: oldest first, each source and reason once
}

func (r *refusals) add(from netip.Addr, reason string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = slices.DeleteFunc(r.last, func(x Refusal) bool { return x.From == from && x.Reason == reason })
	r.last = append(r.last, Refusal{from, reason, now})
	if len(r.last) > maxRefusals {
		r.last = r.last[1:]
	}
}

// sourceOf finds "from=host:port" in a log line of memberlist.
func sourceOf(line string) (netip.Addr, bool) {
	_, rest, ok := strings.Cut(line, "from=")
	if !ok {
		return netip.Addr{}, false
	}
	word, _, _ := strings.Cut(rest, " ")
	at, err := netip.ParseAddrPort(strings.Trim(word, `",:`))
	return at.Addr().Unmap(), err == nil
}

// Refusals returns the sources whose gossip this member has rejected recently, the last one last.
func (c *Cluster) Refusals() []Refusal {
	if c.gossip == nil {
		return nil
	}
	r := &c.gossip.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.last)
}
