package owner

import (
	"time"

	"github.com/keyward/keyward/ring"
)

// Options are a Node's settings. The zero value of every field but Self works.
type Options struct {
	// Self is this member's name on the ring.
	Self ring.ID
	// Seed places keys in the tables. Draw it at random for every process, so that nobody can choose keys that collide.
	Seed [2]uint64
	// MaxKeys caps the counters this member owns; default 500 000, which take 60 MB. The tables of degraded answers (one
	// a policy) hold half as many each, and are empty while nothing fails. Keys that find no place are counted by
	// sketches: 4 MiB for each length of window, at most eight times that.
	MaxKeys int
	// DomainQuota caps the counters of one domain; default half of MaxKeys. Domains whose hashes agree in ten bits
	// share one quota.
	DomainQuota int
	// DenyCache caps the keys remembered as over their limit; default 0, no such memory.
	DenyCache int
	// Fence is the age of the last Tick from which on this member no longer trusts its ownership; default 1.5 s.
	Fence time.Duration
	// SnapshotAge is how long what an owner said of a FailClosed key may be spent from; default 60 s.
	SnapshotAge time.Duration
	// Settle is how long after a ring change other members may still act on the ring before it; default 2 s. A window
	// that begins in that time counts as touched by the change.
	Settle time.Duration
}

func (o Options) withDefaults() Options {
	set(&o.MaxKeys, 500_000)
	set(&o.DomainQuota, max(1, o.MaxKeys/2))
	set(&o.Fence, 1500*time.Millisecond)
	set(&o.SnapshotAge, time.Minute)
	set(&o.Settle, 2*time.Second)
	return o
}

func set[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
