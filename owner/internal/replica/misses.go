package replica

import (
	"iter"
	"maps"
	"slices"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// maxMisses is the most keys that are recorded as missing from one successor.
const maxMisses = 1 << 14

// misses records, for each successor, the keys that another member has confirmed in its place, and in which batch. That
// is enough for a decision, because two members have the charges. But it is the successor that takes over, and it gets
// no later charge of a key that is above its limit. misses also records the zone replicas that a member has not
// confirmed in time.
type misses map[ring.ID]map[counter.Key]uint64

// record records that a member other than key's successor has confirmed batch seq.
func (m misses) record(successor ring.ID, key counter.Key, seq uint64) {
	keys := m[successor]
	if keys == nil {
		keys = map[counter.Key]uint64{}
		m[successor] = keys
	}
	if _, known := keys[key]; known || len(keys) < maxMisses {
		keys[key] = max(keys[key], seq)
	}
}

// clear records that member id has what batch seq, and so all earlier ones, contained of key.
func (m misses) clear(id ring.ID, key counter.Key, seq uint64) {
	if missed, found := m[id][key]; found && missed <= seq {
		m.drop(id, key)
	}
}

func (m misses) drop(id ring.ID, key counter.Key) {
	if delete(m[id], key); len(m[id]) == 0 {
		delete(m, id)
	}
}

// Missed returns the keys that successors have missed, for each successor that is not silent as many as a batch holds.
// The caller passes each to AddMissed before it takes the next. The owner calls Missed with each Tick until the
// successors have confirmed the keys.
func (r *Replicator) Missed(now int64) iter.Seq[counter.Key] {
	return func(yield func(counter.Key) bool) {
		for _, id := range slices.Sorted(maps.Keys(r.misses)) {
			if r.machine.IsSilent(now, id) || !r.HasRoom() {
				continue
			}
			r.missed = gathering{to: id}
			for _, key := range counter.SortedKeys(r.misses[id]) {
				if r.missed.full() || !yield(key) {
					break
				}
			}
			r.dispatch(now, &r.missed)
		}
	}
}

// AddMissed adds key, which Missed has returned, to the batch for its successor. If the counter has expired or the
// member is no longer its successor, the key is not missed any more.
func (r *Replicator) AddMissed(now int64, b *Backlog, key counter.Key) {
	g := &r.missed
	e := b.counters.Find(key)
	if e == nil || e.Expired(now) {
		r.misses.drop(g.to, key)
		return
	}
	_, successor, zone := r.target(now, e, 0)
	if g.to != successor && g.to != zone {
		r.misses.drop(g.to, key)
		return
	}
	it := Item{Key: key, successor: g.to, zone: g.to == zone}
	if u := b.counters.Unreplicated(e); u != nil && !it.zone {
		it.seq, it.upTo = u.Seq(), u.Charged()
	}
	if b.counters.Claims.Len() > 0 { // the successor may lack claims that another member has confirmed
		b.counters.AllClaims(key, func(c protocol.CounterRecord) {
			if g.addRecord(c); g.full() {
				r.dispatch(now, g)
			}
		})
	}
	g.add(b, e, it)
}
