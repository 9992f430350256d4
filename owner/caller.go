package owner

import (
	"maps"
	"sync/atomic"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/ring"
)

// A caller is a process that makes holds, such as an Envoy. Its number has whoBits that name the caller, and above them
// the tag of the member that it is connected to over loopback, or 0: when that member is dead, so is the caller.
const (
	whoBits = 40
	whoMask = 1<<whoBits - 1
)

// CallerOf returns the number of the caller with that hash, for Hold.Caller. via is the member that it has reached over
// loopback, or empty. It is not 0.
func CallerOf(hash uint64, via ring.ID) uint64 {
	c := max(1, hash&whoMask)
	if via != "" {
		c |= MemberCallers(via)
	}
	return c
}

// Who returns the part of a caller's number that all members agree on, however it is connected.
func Who(caller uint64) uint64 { return caller & whoMask }

// MemberCallers returns what the numbers of all callers that id serves over loopback have in common.
func MemberCallers(id ring.ID) uint64 { return max(1, ring.Hash(string(id))>>whoBits) << whoBits }

// maxDead is the most dead callers that are remembered.
const maxDead = 1 << 14

// deadCallers are the callers that have died lately, by Who or MemberCallers.
type deadCallers struct {
	m atomic.Pointer[map[uint64]deadCaller] // immutable; nil: none
}

type deadCaller struct {
	before int64 // claims that were made before are released
	until  int64 // when this is forgotten
}

// ReleaseCaller releases the claims of requests in flight of a dead caller, which Who or MemberCallers names: those that
// were made before that time, of the keys that this member owns now or in the next claim.MarkLife. The following Ticks
// release them step by step.
func (n *Node) ReleaseCaller(now int64, caller uint64, before int64) {
	n.serial.Lock()
	defer n.serial.Unlock()
	next := n.recentlyDead(now)
	if was, known := next[caller]; known || len(next) < maxDead {
		next[caller] = deadCaller{max(before, was.before), now + int64(claim.MarkLife)}
	}
	n.dead.m.Store(&next)
}

// recentlyDead returns a copy of the dead callers that are not forgotten at now. n.serial is locked.
func (n *Node) recentlyDead(now int64) map[uint64]deadCaller {
	next := map[uint64]deadCaller{}
	if m := n.dead.m.Load(); m != nil {
		maps.Copy(next, *m)
		maps.DeleteFunc(next, func(_ uint64, d deadCaller) bool { return d.until <= now })
	}
	return next
}

// forgetDead forgets dead callers. n.serial is locked.
func (n *Node) forgetDead(now int64) {
	m := n.dead.m.Load()
	if m == nil {
		return
	}
	for _, d := range *m {
		if d.until > now {
			continue
		}
		if next := n.recentlyDead(now); len(next) > 0 {
			n.dead.m.Store(&next)
		} else {
			n.dead.m.Store(nil)
		}
		return
	}
}

// isOfDead reports whether c, which is open, is a request in flight of a dead caller.
func (d *deadCallers) isOfDead(c *claim.Claim) bool {
	m := d.m.Load()
	if m == nil || c.Flags()&claim.InFlight == 0 || c.Caller == 0 {
		return false
	}
	who, known := (*m)[c.Caller&whoMask]
	via, knownVia := (*m)[c.Caller&^whoMask]
	return known && c.Made() < who.before || knownVia && c.Made() < via.before
}

// releaseDead begins to release c, whose caller is dead.
func (n *Node) releaseDead(s *shard, now int64, c *claim.Claim) {
	s.counts.Holds.CallersDead++
	s.counters.Claims.Settle(now, c, claim.Settling, c.Amount)
	c.SetGives(true)
	n.changeClaim(s, c)
}
