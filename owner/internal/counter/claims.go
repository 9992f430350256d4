package counter

import (
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/protocol"
)

// ChangedClaims calls add with records of the claims of key that have changed and that no other member has confirmed, the
// earliest changes first and at most as many as a record holds. It returns the number for Claims.Confirm; 0 if there are none. Records are added before that of the counter: a
// receiver that has a claim's hits given back must also know the claim as settled.
func (s *Shard) ChangedClaims(key Key, add func(protocol.CounterRecord)) (seq uint32) {
	var b claimRecords
	seq = s.Claims.Unconfirmed(key, protocol.MaxClaims, func(c *claim.Claim) { b.add(s, c) })
	b.each(add)
	return seq
}

// HasClaims reports whether there are claims of key.
func (s *Shard) HasClaims(key Key) (any bool) {
	s.Claims.Each(key, func(*claim.Claim) bool {
		any = true
		return false
	})
	return any
}

// recentMark is how long after a claim was settled a member with a copy of it may not know that.
const recentMark = int64(10 * time.Second)

// AddClaims adds claims of c's key, which goes to another member, to c, as many as a record holds: first those that were
// settled a short time ago. A receiver that takes one of them for open gives its hits back again, but an unknown one
// gives back nothing.
func (s *Shard) AddClaims(now int64, c *protocol.CounterRecord) {
	b := claimRecords{moves: true}
	for _, first := range [2]bool{true, false} {
		s.Claims.Each(c.Key, func(x *claim.Claim) bool {
			if recent := x.State() != claim.Open && x.Ends() > now+int64(claim.MarkLife)-recentMark; recent == first {
				b.add(s, x)
			}
			return len(b.records) <= 1
		})
	}
	if len(b.records) > 0 {
		c.Claims = b.records[0].Claims
	}
}

// AllClaims calls add with records of the claims of key.
func (s *Shard) AllClaims(key Key, add func(protocol.CounterRecord)) {
	var b claimRecords
	s.Claims.Each(key, func(c *claim.Claim) bool {
		b.add(s, c)
		return true
	})
	b.each(add)
}

// ScanClaims appends records of claims that includes selects to buf: of those in the records from at on, about step of
// them. moves reports whether the claim goes to another member together with its key. ScanClaims returns where to go on.
func (s *Shard) ScanClaims(at uint32, step int, includes func(c *claim.Claim) (selected, moves bool),
	buf []protocol.CounterRecord,
) (_ []protocol.CounterRecord, next uint32, end bool) {
	var b claimRecords
	next, end = s.Claims.Scan(at, step, func(c *claim.Claim) {
		selected, moves := includes(c)
		if b.moves = moves; selected {
			b.add(s, c)
		}
	})
	b.each(func(c protocol.CounterRecord) { buf = append(buf, c) })
	return buf, next, end
}

// claimRecords collects claims into records that hold no more than claims.
type claimRecords struct {
	records []protocol.CounterRecord
	moves   bool // the receiver is to give back what this member has not given back yet
}

// add adds c to the last record, if that is of the same key and has room, or to a new one. Claims of sets stay here.
func (b *claimRecords) add(s *Shard, c *claim.Claim) {
	if c.Flags()&claim.Set != 0 {
		return
	}
	n := len(b.records)
	if n == 0 || b.records[n-1].Key != c.Key || len(b.records[n-1].Claims) >= protocol.MaxClaims {
		b.records = append(b.records, protocol.CounterRecord{
			Key: c.Key, RingPos: c.RingPos, Domain: uint64(c.Domain()),
		})
		n++
	}
	x := *c
	if x.SetGives(b.moves && c.Gives()); b.moves {
		c.SetGives(false)
	}
	if e := s.Find(c.Key); e != nil && s.Rule(e).Algorithm.Bucket() {
		x.At -= s.Claims.Given(c.Key)
	}
	b.records[n-1].Claims = append(b.records[n-1].Claims, x)
}

func (b *claimRecords) each(add func(protocol.CounterRecord)) {
	for i := range b.records {
		add(b.records[i])
	}
}
