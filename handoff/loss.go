package handoff

import (
	"slices"

	"github.com/keyward/keyward/ring"
)

// Loss says what went with its last holders: the state of all keys whose owner and heir on a ring are both dead. It goes
// along with the tokens, for whoever gets the token of a key that nobody holds a counter of cannot know.
type Loss struct {
	FoundAt int64 // when it was found, Unix nanoseconds by the finder's clock
	Members []ring.Member
	Dead    []ring.ID
}

// maxLosses is how many losses are remembered, the newest first.
const maxLosses = 8

// loss is a Loss in the form that is asked.
type loss struct {
	foundAt int64
	ring    *ring.Ring
	dead    []bool // by index on ring
}

// covers says whether both that knew the key at h are dead.
func (l *loss) covers(h uint64) bool {
	o, e := l.ring.Owner(h), l.ring.Successor(h)
	return o >= 0 && l.dead[o] && (e < 0 || l.dead[e])
}

// same says whether both speak of the same members.
func (l *loss) same(b *loss) bool {
	return l.ring.Fingerprint() == b.ring.Fingerprint() && slices.Equal(l.dead, b.dead)
}

// describes says whether l speaks of the same members as x, which are in the order of their names.
func (l *loss) describes(x *Loss) bool {
	if l.ring.Len() != len(x.Members) {
		return false
	}
	for i, m := range x.Members {
		if l.ring.At(i) != m || l.dead[i] != slices.Contains(x.Dead, m.ID) {
			return false
		}
	}
	return true
}

// Lost says when the state of the key at h went with its last holders, who were its owner and its heir.
func (v *OwnershipView) Lost(h uint64) (at int64, lost bool) {
	for i := range v.losses {
		if l := &v.losses[i]; l.covers(h) {
			return l.foundAt, true
		}
	}
	return 0, false
}

// currentLoss is what is lost with those of the last base that are gone without a farewell; false when all are there. Its date stays,
// however often it is told, until somebody more is gone: what was charged since is known to whoever took their keys over.
func (m *Machine) currentLoss(now int64) (l loss, any bool) {
	base := m.lastBase()
	if base == nil {
		return l, false
	}
	l = loss{ring: base, dead: make([]bool, base.Len())}
	for i := range l.dead {
		l.dead[i] = m.isMissing(base.At(i))
		any = any || l.dead[i]
	}
	last := int64(0)
	for _, at := range m.missingSince {
		last = max(last, at)
	}
	l.foundAt = min(now, last+int64(m.opts.TakeoverDelay)) // by then nobody that is gone can have used a token any more
	return l, any
}

// lastBase is the base, or the one that was given up last; nil: none.
func (m *Machine) lastBase() *ring.Ring {
	if m.view.base != nil {
		return m.view.base
	}
	return m.revokedBase
}

// updateMissing notes when those that are gone were missed, with r about to be adopted: who had a place since the base, and whom N_ref may
// still count.
func (m *Machine) updateMissing(now int64, r *ring.Ring) {
	next := map[memberBoot]int64{}
	note := func(a ring.Member, at int64) {
		if !m.isMissing(a) {
			return
		}
		b := memberBoot{a.ID, a.BootID}
		if was, known := m.missingSince[b]; known {
			at = was
		}
		next[b] = at
	}
	all := func(r *ring.Ring) {
		for i := range r.Len() {
			note(r.At(i), now)
		}
	}
	if base := m.lastBase(); base != nil {
		all(base)
	}
	for i := range m.view.steps {
		all(m.view.steps[i].ring)
	}
	all(r)
	if m.membership.NRef > r.Len() {
		for b, at := range m.missingSince {
			note(ring.Member{ID: b.id, BootID: b.bootID}, at)
		}
	}
	m.missingSince = next
}

// isMissing says whether that boot of another member went without a farewell.
func (m *Machine) isMissing(a ring.Member) bool {
	return a.ID != m.opts.Self && !m.isLive(a) && !slices.Contains(m.membership.Left, a.ID)
}

// missingCounted says whether N_ref may count a member that is gone, and not back on r.
func (m *Machine) missingCounted(r *ring.Ring) bool {
	for b := range m.missingSince {
		if r.Index(b.id) < 0 {
			return true
		}
	}
	return false
}

// Losses is what a member that gets tokens from self has to know, the newest first: what was lost, and what is lost with those
// that self misses now, even though self has not taken anything over from them yet.
func (m *Machine) Losses(now int64) []Loss {
	list := m.view.losses
	if l, any := m.currentLoss(now); any {
		list = insertLoss(list, l)
	}
	var out []Loss
	for i := range list {
		l := &list[i]
		x := Loss{FoundAt: l.foundAt}
		for i := range l.ring.Len() {
			a := l.ring.At(i)
			if x.Members = append(x.Members, a); l.dead[i] {
				x.Dead = append(x.Dead, a.ID)
			}
		}
		out = append(out, x)
	}
	return out
}

// insertLoss adds a loss. Those before it stay: a key that went with its holders may have had its place with a member that
// died before it took the key over, and on the ring of that time its heir is one that never had a copy.
func insertLoss(before []loss, l loss) []loss {
	before = slices.DeleteFunc(slices.Clone(before), func(b loss) bool { return l.same(&b) })
	i := slices.IndexFunc(before, func(b loss) bool { return b.foundAt < l.foundAt })
	if i < 0 {
		i = len(before)
	}
	after := slices.Insert(before, i, l)
	return after[:min(len(after), maxLosses)]
}

// dropRecovered takes out of the losses who is live after all: those members bring what they know along.
func (m *Machine) dropRecovered(losses []loss) []loss {
	var out []loss
	for _, l := range losses {
		l.dead = slices.Clone(l.dead)
		for i := range l.dead {
			l.dead[i] = l.dead[i] && !m.isLive(l.ring.At(i))
		}
		if slices.Contains(l.dead, true) {
			out = append(out, l)
		}
	}
	return out
}

// isLive says whether that boot of a member is self, or a peer.
func (m *Machine) isLive(a ring.Member) bool {
	if a.ID == m.opts.Self {
		return a.BootID == m.opts.BootID
	}
	p := m.peers[a.ID]
	return p != nil && p.BootID == a.BootID
}

// AddLosses takes in what a member that gave tokens knows to be lost.
func (m *Machine) AddLosses(losses []Loss) {
	list := m.view.losses
	for i := range losses {
		x := &losses[i]
		if slices.ContainsFunc(list, func(b loss) bool { return b.foundAt >= x.FoundAt && b.describes(x) }) {
			continue // mostly it is known: to make its ring would cost more than all else that an Ack does
		}
		l := loss{foundAt: x.FoundAt, ring: ring.New(x.Members)}
		l.dead = make([]bool, l.ring.Len())
		for i := range l.dead {
			l.dead[i] = slices.Contains(x.Dead, l.ring.At(i).ID)
		}
		list = insertLoss(list, l)
	}
	list = m.dropRecovered(list)
	if !slices.EqualFunc(list, m.view.losses, func(a, b loss) bool { return a.foundAt == b.foundAt && a.same(&b) }) {
		m.publish().losses = list
	}
}
