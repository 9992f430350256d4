package owner

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/owner/internal/replica"
)

// Node is the state machine of one member. It counts the keys that the member owns, and decides requests for other
// keys when their owners do not. All of its methods are safe for concurrent use; those that return Ready run one at
// a time.
type Node struct {
	options      Options
	ticked       atomic.Int64 // time of the last Tick or SetMembership
	counters     *counter.Shared
	shards       [counter.Shards]shard
	pending      atomic.Int64 // pending requests
	dirty        atomic.Bool  // Flush has something to send
	urgent       atomic.Bool  // and a request waits for it
	leaseTraffic atomic.Bool  // and messages about leases are part of it
	lender       *lending.Lender
	dead         deadCallers

	serial struct {
		sync.Mutex // taken before the mutex of any shard
		machine    *handoff.Machine
		view       *view
		transfers  []handoff.Transfer
		progress   membership.Progress // as the last Ready reported it
		replicator *replica.Replicator
		counts     messageCounts
	}
	scans      scans
	journal    journaling
	federation federated
}

// New returns a Node without a ring. Until SetMembership it decides every request from its local share.
func New(o Options) *Node {
	o = o.withDefaults()
	n := &Node{options: o}
	n.serial.machine = handoff.NewMachine(handoff.Options{
		Self: o.Self, BootID: o.BootID, Detection: o.Detection,
	})
	n.serial.view = newView(n.serial.machine.View(), nil, nil)
	n.serial.replicator = replica.New(o.Resend, n.serial.machine)
	n.serial.replicator.SetView(n.serial.view.OwnershipView, n.serial.view.copies)
	n.counters = counter.New(counter.Config{
		BootID: o.BootID, Seed: o.Seed, SketchSeed: o.SketchSeed,
		MaxKeys: o.MaxKeys, DomainQuota: o.DomainQuota, MaxDenied: o.DenyCache, MaxHolds: o.MaxHolds,
		Journal: o.DataWindow > 0,
	})
	n.federation.set(o.Federation)
	n.lender = lending.NewLender(n.serial.machine, lending.LenderConfig{
		BootID: o.BootID, Seed: o.Seed, HotRate: o.HotRate, NoHot: o.NoHot, MaxLeases: o.MaxLeases,
	})
	for i := range n.shards {
		s := &n.shards[i]
		s.view, s.bootID = n.serial.view, o.BootID
		s.sketches = &n.counters.Sketches
		n.counters.Init(&s.counters)
		s.replicas.Init(&s.counters)
		s.writes.Init(&s.counters, int64(n.lateness()))
		s.leases.Init(n.lender, &s.counters, &lendingOwner{n, s})
		s.leases.SetView(s.view.OwnershipView)
	}
	return n
}

// shard returns the shard of key and its hash in the tables.
func (n *Node) shard(key Key) (*shard, uint64) {
	hash := counter.Hash(n.options.Seed, key)
	return &n.shards[counter.ShardOf(hash)], hash
}

// Decide decides req if this member owns its key, and names the owner otherwise. If the decision has to wait, for the
// key's ownership or for a replica's confirmation, the result is Pending, and the decision is in the Ready of a later
// call, with the request's Waiter. Decide does not allocate when the key is local.
func (n *Node) Decide(now int64, req *Request) Result {
	var res Result
	s, hash := n.shard(req.Key)
	op := shardOp{Request: req, now: now, hash: hash}
	s.mu.Lock()
	if !n.denyCached(s, &op, &res) {
		n.decideLocked(s, &op, &res)
	}
	s.mu.Unlock()
	return res
}

// DecideAll decides all requests of one call, in order; two requests for one key are two hits in a row. The result for
// a key that another member owns is Forward.
//
// A call that is whole, see IsWhole, is decided at once if this member decides all keys: if it is refused, nothing is
// charged.
//
// With stop, one request that exceeds its limit keeps the others from being charged: only those that exceed their
// limits are charged, and the others are decided as Read. That is exact when this member decides all keys. If it does
// not, of either kind of call nothing is charged and every result is Forward, with this member itself for the keys that
// it owns. The caller then makes claims of claim.Set at all owners. Or it asks them with DryRun, changes the requests
// with ApplyStop, and asks again.
func (n *Node) DecideAll(now int64, stop bool, reqs []Request, results []Result) {
	results = results[:len(reqs)]
	if IsWhole(reqs) {
		clear(results)
		n.stopAll(now, false, reqs, results)
		return
	}
	cached := n.denyCachedAll(now, reqs, results)
	switch {
	case stop && cached:
		n.readAll(now, reqs, results)
	case stop:
		n.stopAll(now, false, reqs, results)
	default:
		for i := range reqs {
			if results[i].Authority != Cached {
				n.decideOne(now, false, &reqs[i], &results[i])
			}
		}
	}
}

// Serve decides a group of requests that another member sends to this one as the owner. The result is Forward for a key
// that this member does not decide with full authority. With stop, one such request makes all results Forward.
func (n *Node) Serve(now int64, stop bool, reqs []Request, results []Result) {
	results = results[:len(reqs)]
	if stop {
		n.stopAll(now, true, reqs, results)
		return
	}
	for i := range reqs {
		results[i] = Result{}
		n.decideOne(now, true, &reqs[i], &results[i])
	}
}

// decideOne decides req into res, which is empty.
func (n *Node) decideOne(now int64, served bool, req *Request, res *Result) {
	s, hash := n.shard(req.Key)
	op := shardOp{Request: req, now: now, hash: hash, served: served}
	s.mu.Lock()
	n.decideLocked(s, &op, res)
	s.mu.Unlock()
}

// shardMask returns the shards of reqs as a mask.
func (n *Node) shardMask(reqs []Request) (mask uint64) {
	for i := range reqs {
		_, hash := n.shard(reqs[i].Key)
		mask |= 1 << counter.ShardOf(hash)
	}
	return mask
}

// lockAll locks the shards of mask in ascending order, which is the only order in which several are held.
func (n *Node) lockAll(mask uint64) {
	for m := mask; m != 0; m &= m - 1 {
		n.shards[bits.TrailingZeros64(m)].mu.Lock()
	}
}

func (n *Node) unlockAll(mask uint64) {
	for m := mask; m != 0; m &= m - 1 {
		n.shards[bits.TrailingZeros64(m)].mu.Unlock()
	}
}
