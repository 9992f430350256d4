package owner

import (
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// Options configures a Node. The zero value of every field but Self works for a standalone member; others need BootID.
type Options struct {
	// Self is this member's name in the ring.
	Self ring.ID
	// BootID identifies this boot of the member. It is odd and above 1; default 3. Charges are stored by BootID.
	BootID uint64
	// Seed places keys in the tables. It must be random for every process, so that no client can choose keys that collide.
	Seed [2]uint64
	// SketchSeed places keys in the sketches. It is the same on all members of a cluster, so that sketches can be sent
	// with the keys.
	SketchSeed [2]uint64
	// MaxKeys is the most counters that this member owns; default 500,000, which take 32 MB. Twice as many may be stored
	// for other members (replicas, and counters that were released), and three times as many records of what does not fit
	// into the counter of one writer: a log takes about 64 of them for each member that has charged it. The tables of
	// degraded decisions, one for each policy, hold half as many each, and are empty while nothing fails. Keys without
	// room are counted in sketches: 4 MiB for each length of window, at most eight times that.
	MaxKeys int
	// DomainQuota is the most counters of one domain; default half of MaxKeys. Domains whose hashes agree in ten bits
	// share one quota.
	DomainQuota int
	// DenyCache is the most keys in the deny cache; default 0, no deny cache.
	DenyCache int
	// Policy sets how much of a limit one side of a partition may admit, for rules that do not set it.
	Policy policy.Partition
	// ProRata admits, for a key whose counter was lost with its owner and its successor, only the part of its limit that
	// is left of the present window.
	ProRata bool
	// Detection sets the age of the last Tick, and of other members' confirmations, from which on this member does not use
	// its ownership (T_own, 1.5 s by default), and the time between the last confirmation of a failed member and the
	// takeover of its keys (T_take, 2 s by default).
	Detection membership.Detection
	// SnapshotAge is how old the state of a FailClosed key, from the owner's last reply or from a replica, may be for
	// other members to admit hits of what it has left; default 60 s.
	SnapshotAge time.Duration
	// LegacyGrace is how long after a ring change members without handoff may still use the previous ring; default 2 s. A
	// window that begins in that time counts as affected by the change.
	LegacyGrace time.Duration
	// DataWindow is the shortest window of the rules whose counters the member's journal contains (--data-window), and for
	// buckets the shortest time to fill; default 0, no journal.
	DataWindow time.Duration
	// Resend is how long a member has to confirm replicas before another one gets them; default 10 ms.
	Resend time.Duration
	// MaxWaiting is the most requests that wait for ownership or for replicas; default 8192.
	MaxWaiting int
	// HotRate (H_abs) is the rate, in requests per second, below which no key is hot; default 5% of the capacity that
	// SetLoad sets.
	HotRate float64
	// Federation is this region's place in a federation; the zero value is none.
	Federation FederationPlace
	// MaxHolds is the most claims, open and settled, that this member makes: of holds, requests in flight and requests that
	// must not be charged twice. It stores as many of other members. Half of them may be in one domain. Default 262,144.
	MaxHolds int
	// NoHot disables the detection of hot keys. Rules and routes can still require leases.
	NoHot bool
	// MaxLeases is the most keys of which this member holds leases; default 1024.
	MaxLeases int
}

func (o Options) withDefaults() Options {
	set(&o.MaxKeys, 500_000)
	set(&o.DomainQuota, max(1, o.MaxKeys/2))
	o.Detection = o.Detection.OrDefault()
	set(&o.SnapshotAge, time.Minute)
	set(&o.LegacyGrace, 2*time.Second)
	set(&o.Resend, 10*time.Millisecond)
	set(&o.MaxWaiting, 8192)
	set(&o.MaxLeases, 1024)
	set(&o.MaxHolds, 1<<18)
	if o.BootID <= 1 {
		o.BootID = 3
	}
	return o
}

// set gives a field without a value its default.
func set[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
