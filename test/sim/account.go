package sim

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// account is everything that is known about one counter.
type account struct {
	key       owner.Key
	rule      limit.Rule
	strict    bool
	partition policy.PartitionChoice
	unseen    []abandoned // decisions that the oracle has not seen
	spans     []*span     // windows, the newest last; for a bucket the current busy period
	level     float64     // of a bucket, in hits
	credit    float64     // of a bucket: refunded hits
	freed     float64     // of a bucket: hits that credit has paid for since it was last empty
	early     float64     // the same before it was empty: refunds may be seen before the charges that they are for
	at        int64       // of level, by the clock of the member that decides
	by        *member
	skew      float64     // hits that differing clocks may admit
	log       []admission // of a log

	owner  uint64  // ring position
	depth  uint64  // from the newest request for a lease
	lends  bool    // a member has requested a lease, or reported
	lender *member // the last grantor
	until  int64   // end of what it has lent
	asked  []int64 // times of requests, in calm runs

	holds []*hold // and plain requests, in worlds with holds

	journaled bool      // it is in journals
	undecided []*member // where requests were abandoned
}

// abandoned is a request that was abandoned, and that may have been decided.
type abandoned struct {
	at int64
	q  *request
}

// admission is an admission, by the clock of the member that decided.
type admission struct {
	at   int64
	n    uint64
	slop int64 // it may have been this much earlier
}

// span is a window, or a busy period of a bucket, with what may have gone wrong in it.
type span struct {
	index     int64
	start     int64 // in true time, when first seen
	end       int64 // by the clock of the member that decides; for a bucket never
	latest    int64 // decision in it, by the clock of the member that decides
	limit     uint64
	admitted  uint64
	refunded  uint64
	older     uint64 // refunded hits of the previous window that refunded does not include
	shared    uint64 // admitted under SHARE
	shares    map[*member]uint64
	share     uint64 // of one member, at most
	losses    uint64 // lost members that had decided in it
	lostState uint64 // what may be admitted for lost state
	assumed   bool   // all that knew it were lost, so that others may have assumed how much was used
	allowance uint64
	forgotten uint64 // of allowance, what may be admitted again because no member knows the counter anymore
	split     uint64 // parts of the cluster in addition to the first
	faults    faultKind
	divided   divided // of a static rule
	deciders  []*member
	last      *member // the last of them
	successor *member // the successor of that one
	spare     *member // the holder of its zone replica
	survives  uint64  // hits that the next owner must count, because another zone has them
	refunds   bool
	scaled    bool              // some of it was decided with a part of the limit
	leftAt    map[uint64]uint64 // counts at which a decision was made, with its request
	balance   map[uint64]int    // decisions that lead away from a count, minus those that lead to it
	unseen    int               // decisions that the oracle has not seen
	charged   uint64            // requested hits
	unknown   uint64            // hits of unseen decisions

	holdSlack   uint64 // hits of holds that may be given back more than once
	overCharged uint64 // hits that are charged and not admitted: those of refused requests, and of commits beyond their holds

	byOwner uint64    // admitted by decisions on the counter
	lenders []*member // of parts of it
	copiers map[*member]uint64
	ahead   uint64 // what copiers may have admitted before reporting

	closed []closedHits // of a fail_closed rule

	// Of a counter in journals.
	counted     uint64 // hits that were admitted on the counter
	recent      []recentHits
	restart     *restart // the last one
	restarts    int
	restartLoss uint64             // hits that journals may have lacked
	replicated  uint64             // count that the successor knows, see countKnown
	floor       uint64             // count before all members stopped in good order
	floors      map[*member]uint64 // of each member
}
