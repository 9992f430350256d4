package source

// MemberRules is what another member has said by gossip. Zero hashes are "none".
type MemberRules struct {
	ID       string
	InForce  uint64 // version that it answers by
	Prepared uint64 // version that it has read and waits to switch to
}

func (m MemberRules) has(version uint64) bool { return m.InForce == version || m.Prepared == version }

// reason is why a version came into force.
type reason string

const (
	first   reason = "first"   // there were no rules before
	agreed  reason = "agreed"  // every live member has it
	timeout reason = "timeout" // some did not get it in time
)

// effects are what an event of the agreement asks its driver to do. The zero value is nothing.
type effects struct {
	announce bool   // tell the others inForce and prepared
	replaced uint64 // a prepared version that will not come into force
	switched reason // inForce has changed
}

// maxWaits bounds how long newer loads may put off a switch, in waits: rules that change every minute still come into
// force while a member is stuck.
const maxWaits = 3

// agreement decides when a version comes into force here. It is pure: events and the time come in, effects go out.
// Times are nanoseconds.
//
//	          load: first ever             load: another
//	no rules ------------------> in force -----------------> in force + prepared --+
//	                                 ^  ^    load: in force         |       ^      | load: a third
//	                                 |  +---------------------------+       +------+
//	                                 +-- every live member has it, or wait is over
//
// Every member that loads the same versions in the same order puts them in force in that order. None switches while a
// live member could answer by rules that it has not even read, unless wait is over.
type agreement struct {
	wait     int64 // how long a prepared version waits for the others
	inForce  uint64
	prepared uint64
	since    int64 // when prepared was loaded
	pending  int64 // when something was first prepared after the last switch or cancellation
	others   []MemberRules
}

// load is: this member has read a version.
func (a *agreement) load(now int64, version uint64) effects {
	switch {
	case a.inForce == 0:
		a.inForce = version
		return effects{announce: true, switched: first}
	case version == a.prepared:
		return a.step(now)
	case version == a.inForce && a.prepared == 0:
		return effects{}
	case version == a.inForce:
		e := effects{announce: true, replaced: a.prepared}
		a.prepared, a.since, a.pending = 0, 0, 0
		return e
	}
	e := effects{replaced: a.prepared}
	if a.prepared == 0 {
		a.pending = now
	}
	a.prepared, a.since = version, now
	e.switched = a.step(now).switched
	e.announce = true
	return e
}

// heard is: these are the other live members, and what they have.
func (a *agreement) heard(now int64, others []MemberRules) effects {
	a.others = others
	return a.step(now)
}

// step switches if it is time to.
func (a *agreement) step(now int64) effects {
	if a.prepared == 0 {
		return effects{}
	}
	why := agreed
	if len(a.lacking()) > 0 {
		if now < a.deadline() {
			return effects{}
		}
		why = timeout
	}
	a.inForce = a.prepared
	a.prepared, a.since, a.pending = 0, 0, 0
	return effects{announce: true, switched: why}
}

// deadline is when the prepared version comes into force whatever the others have.
func (a *agreement) deadline() int64 { return min(a.since+a.wait, a.pending+maxWaits*a.wait) }

// lacking are the members that the prepared version waits for. A member without any rules is none of them: it takes
// the first that it reads at once.
func (a *agreement) lacking() (ids []string) {
	if a.prepared == 0 {
		return nil
	}
	for _, m := range a.others {
		if m.InForce|m.Prepared != 0 && !m.has(a.prepared) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// disagreeing are the members that answer by other rules than this one, or by none.
func (a *agreement) disagreeing() (ids []string) {
	for _, m := range a.others {
		if m.InForce != a.inForce {
			ids = append(ids, m.ID)
		}
	}
	return ids
}
