package app

import (
	"sync"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

const (
	// maxUsageKeys is the number of keys of which usageReads remembers the last answer.
	maxUsageKeys = 4096
	// maxUsageSkew is how far apart the clocks of two members may be for the answer of the slower one, about a window
	// that has ended by the other one, to be replaced by the last answer.
	maxUsageSkew = 10 * time.Second
)

// The sources of a count in the answer of /v1/counters.
const (
	fromOwner  = "owner"       // the key's owner, just now
	fromRecord = "recorded"    // this member's replica, with what it has admitted without the owner
	fromLast   = "last_answer" // an earlier answer of this member for the same window
	fromMember = "this_member" // mechanism static: this member's count; the sum of all members is not known
)

// usageReads remembers the last answers about the usage of keys, so that the answers for one fixed window do not fall
// when a key's owner fails and while it is away. The zero value is empty. It is safe for concurrent use.
type usageReads struct {
	mu    sync.Mutex
	clock uint64 // increases with each call of begin and merge
	last  map[owner.Key]lastUsage
}

// lastUsage is the last answer about the usage of one key.
type lastUsage struct {
	window  int64
	count   uint64   // the largest answer for window, less what its owner has refunded
	owner   ownerRef // the member that reported owned
	owned   uint64   // the count that it reported last
	readAt  uint64   // usageReads.clock when the last answer of an owner was merged
	updated uint64   // usageReads.clock when this was last used
}

// ownerRef identifies one boot of an owner.
type ownerRef struct {
	id     string
	bootID uint64
}

// usageRead is one reading of a key's usage.
type usageRead struct {
	key   owner.Key
	rule  limit.Rule
	now   int64
	begun uint64 // as begin returned it, before the owner was asked
	// end is the time until the window ends, by the clock of the member that decided.
	end     time.Duration
	isOwner bool     // the owner has answered for the complete limit
	owner   ownerRef // if isOwner; zero if the owner changed meanwhile
	count   uint64
}

// begin returns the value for usageRead.begun.
func (u *usageReads) begin() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clock++
	return u.clock
}

// window returns the window that r is about. The clock of the member that decided may differ from now by less than half
// a window.
func (r *usageRead) window() int64 { return r.rule.Index(r.now + int64(r.end) - r.rule.End(0)/2) }

// merge returns the answer for r: the larger of its count and the last answer for the same window. A count is below
// the last answer only if the same boot of the owner reported more to an earlier reading: then the owner has refunded
// hits, or holders of leases have returned them. Counts of algorithms without fixed windows are returned as they are,
// because they fall as time passes.
func (u *usageReads) merge(r *usageRead) (count uint64, source string) {
	if source = fromRecord; r.isOwner {
		source = fromOwner
	}
	if r.rule.Algorithm != limit.FixedWindow {
		return r.count, source
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clock++
	l := u.last[r.key]
	switch w := r.window(); {
	case w == l.window-1 && r.end <= maxUsageSkew: // answered by a slower clock than the last one
		return l.count, fromLast
	case w != l.window: // a new window, or the last answer's clock was set back
		l = lastUsage{window: w}
	}
	if r.isOwner {
		if r.owner == l.owner && l.owner != (ownerRef{}) && r.count < l.owned && r.begun > l.readAt {
			l.count -= min(l.count, l.owned-r.count)
		}
		if r.owner != (ownerRef{}) && (r.owner != l.owner || r.begun > l.readAt) {
			l.owner, l.owned, l.readAt = r.owner, r.count, u.clock
		}
	}
	if r.count < l.count {
		source = fromLast
	}
	l.count, l.updated = max(l.count, r.count), u.clock
	u.store(r.key, l)
	return l.count, source
}

// forget drops the last answer for key, whose hits were refunded.
func (u *usageReads) forget(key owner.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.last, key)
}

// store records l for key. If there is no room, it drops the key that was read least recently.
func (u *usageReads) store(key owner.Key, l lastUsage) {
	if u.last == nil {
		u.last = map[owner.Key]lastUsage{}
	}
	if _, found := u.last[key]; !found && len(u.last) >= maxUsageKeys {
		oldest, at := key, l.updated
		for k, x := range u.last {
			if x.updated < at {
				oldest, at = k, x.updated
			}
		}
		delete(u.last, oldest)
	}
	u.last[key] = l
}
