package owner

import (
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/ring"
)

// Options are a Node's settings. The zero value of every field but Self works for a member that stands alone; others
// need Inst.
type Options struct {
	// Self is this member's name on the ring.
	Self ring.ID
	// BootID is this boot of the member, odd and above 1; default 3. Charges are told apart by the Inst of who made them.
	BootID uint64
	// Seed places keys in the tables. Draw it at random for every process, so that nobody can choose keys that collide.
	Seed [2]uint64
	// SketchSeed is the seed of the sketches: the same on all members of a cluster, so that what they count can move with the keys.
	SketchSeed [2]uint64
	// MaxKeys caps the counters this member owns; default 500 000, which take 32 MB. Twice as many may be kept for others
	// (copies, and what was handed over), and three times as many records of what does not fit in a counter of one
	// writer: a log takes some 64 of them for each member that has charged it. The tables of degraded answers (one a
	// policy) hold half as many each, and are empty while nothing fails. Keys that find no place are counted by sketches:
	// 4 MiB for each length of window, at most eight times that.
	MaxKeys int
	// DomainQuota caps the counters of one domain; default half of MaxKeys. Domains whose hashes agree in ten bits
	// share one quota.
	DomainQuota int
	// DenyCache caps the keys remembered as over their limit; default 0, no such memory.
	DenyCache int
	// Policy is what a part of a divided cluster may admit.
	Policy handoff.PartitionPolicy
	// ProRata gives a key whose counts are lost, with its owner and its heir, only the part of its limit that is left of
	// the window under way.
	ProRata bool
	// OwnershipTTL (T_own) is the age of the last Tick, and of other members' confirmations, from which on this member no
	// longer trusts its ownership; default 1.5 s.
	OwnershipTTL time.Duration
	// TakeoverDelay (T_take) is how long after its last confirmation a lost member's keys are taken over; default Fence + 0.5 s.
	TakeoverDelay time.Duration
	// SnapshotAge is how long what an owner said of a FailClosed key may be spent from; default 60 s.
	SnapshotAge time.Duration
	// LegacyGrace is how long after a ring change members that cannot hand over may still act on the ring before it; default
	// 2 s. A window that begins in that time counts as touched by the change.
	LegacyGrace time.Duration
	// Resend is how long another member has to confirm copies before a further one is sent them; default 10 ms.
	Resend time.Duration
	// MaxWaiting caps the questions that wait for tokens and copies; default 8192.
	MaxWaiting int
	// HotRate (H_abs) is the rate, in questions a second, below which no key is hot; default 5 % of what SetLoad says that
	// this machine could decide.
	HotRate float64
	// NoHot turns the detection of hot keys off. Rules that say so, and routes, still lease.
	NoHot bool
	// MaxLeases caps the keys of which this member holds leases; default 1024.
	MaxLeases int
}

func (o Options) withDefaults() Options {
	set(&o.MaxKeys, 500_000)
	set(&o.DomainQuota, max(1, o.MaxKeys/2))
	set(&o.OwnershipTTL, 1500*time.Millisecond)
	set(&o.TakeoverDelay, o.OwnershipTTL+500*time.Millisecond)
	set(&o.SnapshotAge, time.Minute)
	set(&o.LegacyGrace, 2*time.Second)
	set(&o.Resend, 10*time.Millisecond)
	set(&o.MaxWaiting, 8192)
	set(&o.MaxLeases, 1024)
	if o.BootID <= 1 {
		o.BootID = 3
	}
	return o
}

func set[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
