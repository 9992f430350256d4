package owner

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// maxWait is how long a question waits at most, in case its caller forgot it.
const maxWait = int64(10 * time.Second)

// Done resolves a ticket. An answer of Kind Ask with no Member is none: the question is to be degraded.
type Done struct {
	Ticket uint64
	Result Result
}

// Effects are what is to be done after a call: messages to send, and tickets that are resolved.
type Effects struct {
	Out          []handoff.Outbound
	Done         []Done
	Leases       []lease.Delivery
	Audits       []Audit
	ClockStopped time.Duration // this member's clock has stood still, for so long at least, and its tokens are given up; 0: it has not
}

// Audit is a grant, or a report that was taken in, of a rule that wants them logged.
type Audit struct {
	Key      Key
	Name     string // for people; empty when nobody has told it
	Member   ring.ID
	IsReport bool   // a report of an approximate rule; else a grant
	Hits     uint64 // granted, or that the member had admitted and not reported
	Used     uint64 // the count then
	Limit    uint32
}

// waits are the questions of one shard that wait. Guarded by its mu.
type waits struct {
	next      uint64
	tickets   map[uint64]*wait
	replicas  map[Key][]uint64 // tickets that wait for copies, the oldest first
	ownership map[Key]*ownershipWait
}

// wait is one question that waits.
type wait struct {
	request Request
	hash    uint64
	since   int64
	result  Result        // given already, if it waits for copies
	seq     uint32        // of the debt
	upTo    uint64        // as many of its hits have to be confirmed
	grant   *pendingGrant // who waits is no question but a holder
}

// ownershipWait is one key whose token was asked for.
type ownershipWait struct {
	owner       uint64
	domain      uint64
	rule        limit.Rule // of the question that asked first
	holder      ring.ID
	requestedAt int64 // 0: not yet
	tickets     []uint64
}

// await makes q a question that waits; nil when too many do.
func (n *Node) await(s *shard, now int64, hash, ticket uint64, req *Request, res *Result) *wait {
	w := s.waits.tickets[ticket]
	if w == nil {
		if n.pending.Add(1) > int64(n.options.MaxWaiting) {
			n.pending.Add(-1)
			s.counts.pendingRefused++
			*res = Result{Kind: Forward}
			return nil
		}
		s.waits.next++
		ticket = s.waits.next<<counter.ShardBits | hash>>(64-counter.ShardBits)
		w = &wait{request: *req, hash: hash, since: now}
		if s.waits.tickets == nil {
			s.waits.tickets, s.waits.replicas, s.waits.ownership = map[uint64]*wait{}, map[Key][]uint64{}, map[Key]*ownershipWait{}
		}
		s.waits.tickets[ticket] = w
	}
	w.result = *res
	*res = Result{Kind: Pending, Ticket: ticket}
	n.dirty.Store(true)
	n.urgent.Store(true)
	return w
}

// awaitOwnership lets q wait for its key's token, which holder is asked for.
func (n *Node) awaitOwnership(s *shard, hash uint64, now int64, req *Request, holder ring.ID, res *Result) {
	if n.await(s, now, hash, 0, req, res) == nil {
		return
	}
	t := s.waits.ownership[req.Key]
	if t == nil {
		t = &ownershipWait{owner: req.RingPos, domain: req.Domain, rule: req.Rule, holder: holder}
		s.waits.ownership[req.Key] = t
	}
	t.tickets = append(t.tickets, res.Ticket)
}

// Cancel gives up a ticket; false when it was resolved before: then its answer stands.
func (n *Node) Cancel(ticket uint64) bool {
	s := &n.shards[ticket&(counter.Shards-1)]
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.removeWait(s, ticket)
}

// removeWait forgets a ticket. Lists of tickets may name it still.
func (n *Node) removeWait(s *shard, ticket uint64) bool {
	w := s.waits.tickets[ticket]
	if w == nil {
		return false
	}
	delete(s.waits.tickets, ticket)
	n.pending.Add(-1)
	key := w.request.Key
	if t := s.waits.ownership[key]; t != nil && !s.anyWaits(t.tickets) {
		delete(s.waits.ownership, key)
	}
	if l := s.waits.replicas[key]; l != nil && !s.anyWaits(l) {
		delete(s.waits.replicas, key)
	}
	return true
}

func (s *shard) anyWaits(tickets []uint64) bool {
	for _, t := range tickets {
		if s.waits.tickets[t] != nil {
			return true
		}
	}
	return false
}

// resolve answers a ticket.
func (n *Node) resolve(s *shard, ticket uint64, res Result, fx *Effects) {
	w := s.waits.tickets[ticket]
	switch {
	case !n.removeWait(s, ticket):
	case w.grant == nil:
		fx.Done = append(fx.Done, Done{ticket, res})
	case res.Kind == Decided:
		w.grant.send(fx)
	}
}

// decidePending decides the questions that wait for the token of key k, which is here now.
func (n *Node) decidePending(s *shard, now int64, key Key, fx *Effects) {
	t := s.waits.ownership[key]
	if t == nil {
		return
	}
	delete(s.waits.ownership, key)
	right, num, den := n.authority(now, s.view)
	if right == handoff.ExtentFull {
		den = 0
	}
	for _, ticket := range t.tickets {
		w := s.waits.tickets[ticket]
		if w == nil {
			continue
		}
		res := Result{Kind: Forward}
		if right != handoff.ExtentNone {
			e := s.counters.Owned.Find(w.hash, key)
			n.decideLocked(s, w.hash, now, &w.request, e, part{num, den}, ticket, &res)
		}
		if res.Kind != Pending {
			n.resolve(s, ticket, res, fx)
		}
	}
}

// forwardAll resolves the questions that wait for the token of key k: member decides it.
func (n *Node) forwardAll(s *shard, key Key, member ring.ID, fx *Effects) {
	t := s.waits.ownership[key]
	if t == nil {
		return
	}
	delete(s.waits.ownership, key)
	for _, ticket := range t.tickets {
		n.resolve(s, ticket, Result{Kind: Forward, Member: member}, fx)
	}
}

// keys are the keys whose tokens are waited for, in an order that is the same for equal histories.
func (w *waits) keys() []Key {
	if len(w.ownership) == 0 {
		return nil
	}
	ks := make([]Key, 0, len(w.ownership))
	for key := range w.ownership {
		ks = append(ks, key)
	}
	slices.SortFunc(ks, func(a, b Key) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return ks
}

// reviewOwnershipWaits looks at all keys whose token is waited for, by a view that is new.
func (n *Node) reviewOwnershipWaits(s *shard, now int64, fx *Effects) {
	for _, key := range s.waits.keys() {
		t := s.waits.ownership[key]
		_, hash := n.shard(key)
		switch hold := s.view.Ownership(t.owner, s.counters.Owned.Find(hash, key).OwnedEpoch(t.owner)); {
		case hold.State == handoff.OwnedHere:
			n.decidePending(s, now, key, fx)
		case hold.State == handoff.OwnedElsewhere:
			n.forwardAll(s, key, hold.Member, fx)
		case hold.Member != t.holder:
			t.holder, t.requestedAt = hold.Member, 0
		}
	}
}

// resolveReplicated resolves the questions on key k that wait for copies, of the present debt as far as upto hits of it are
// known to others.
func (n *Node) resolveReplicated(s *shard, key Key, turn uint32, upto uint64, fx *Effects) {
	l := s.waits.replicas[key]
	for len(l) > 0 {
		w := s.waits.tickets[l[0]]
		if w != nil && w.seq == turn && w.upTo > upto {
			break
		}
		ticket := l[0]
		l = l[1:]
		s.waits.replicas[key] = l
		if w != nil {
			n.resolve(s, ticket, w.result, fx)
		}
	}
	if len(l) == 0 {
		delete(s.waits.replicas, key)
	}
}

// expireWaits resolves what has waited far longer than any caller.
func (n *Node) expireWaits(s *shard, now int64, fx *Effects) {
	var old []uint64
	for ticket, w := range s.waits.tickets {
		if now-w.since > maxWait {
			old = append(old, ticket)
		}
	}
	slices.Sort(old)
	for _, ticket := range old {
		n.resolve(s, ticket, Result{Kind: Forward}, fx)
	}
}
