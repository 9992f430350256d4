package source

// memberRules are the versions that another member has announced by gossip. 0 is none.
type memberRules struct {
	ID       string
	InForce  uint64 // the version that it uses
	Prepared uint64 // the version that it has loaded and waits to switch to
}

func (m memberRules) has(version uint64) bool { return m.InForce == version || m.Prepared == version }

// reason states why a version came into force.
type reason string

const (
	first   reason = "first"   // there were no rules before
	agreed  reason = "agreed"  // every live member has it
	timeout reason = "timeout" // a member did not load it in time
)

// effects are what the driver must do after an event. The zero value is nothing.
type effects struct {
	announce bool   // announce inForce and prepared to the other members
	replaced uint64 // a prepared version that will not come into force
	switched reason // inForce has changed
}

// maxWaits limits for how many waits newer versions can delay a switch. Rules that change every minute still come into
// force while a member is stuck.
const maxWaits = 3

// agreement decides when a version comes into force on this member. It has no clock and no I/O: methods receive the
// time, in nanoseconds, and return effects.
//
//	          load: first ever             load: another
//	no rules ------------------> in force -----------------> in force + prepared --+
//	                                 ^  ^    load: in force         |       ^      | load: a third
//	                                 |  +---------------------------+       +------+
//	                                 +-- every live member has it, or wait is over
//
// Members that load the same versions in the same order activate them in that order. No member switches while a live
// member has not loaded the new version, unless wait is over.
type agreement struct {
	wait         int64 // how long a prepared version waits for the others
	inForce      uint64
	prepared     uint64
	loadedAt     int64 // when prepared was loaded
	waitingSince int64 // when a version was first prepared after the last switch or cancellation
	others       []memberRules
}

// load processes a version that this member has loaded.
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
		a.prepared, a.loadedAt, a.waitingSince = 0, 0, 0
		return e
	}
	e := effects{replaced: a.prepared}
	if a.prepared == 0 {
		a.waitingSince = now
	}
	a.prepared, a.loadedAt = version, now
	e.switched = a.step(now).switched
	e.announce = true
	return e
}

// setMembers processes the versions of the other live members.
func (a *agreement) setMembers(now int64, others []memberRules) effects {
	a.others = others
	return a.step(now)
}

// step switches to the prepared version if every member has it or the wait is over.
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
	a.prepared, a.loadedAt, a.waitingSince = 0, 0, 0
	return effects{announce: true, switched: why}
}

// deadline returns when the prepared version comes into force at the latest.
func (a *agreement) deadline() int64 { return min(a.loadedAt+a.wait, a.waitingSince+maxWaits*a.wait) }

// lacking returns the members that the prepared version waits for. Members without rules are not included: they
// activate the first version that they load.
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

// disagreeing returns the members that use other rules than this one, or none.
func (a *agreement) disagreeing() (ids []string) {
	for _, m := range a.others {
		if m.InForce != a.inForce {
			ids = append(ids, m.ID)
		}
	}
	return ids
}
