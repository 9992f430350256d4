package owner

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
)

// maxCells of a sketch go in one message.
const maxCells = 8192

// give returns what part i has counted of owners' hits, in pieces for messages.
func (k *sketches) give(i int, now int64) (out []*handoff.SketchPart) {
	if k.live.Load() == 0 {
		return nil
	}
	p := &k.parts[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	for j := range p.list {
		s := &p.list[j]
		if s.end+int64(ahead) <= now || s.kinds>>ownedTable&1 == 0 { // the receiver's clock may be behind
			continue
		}
		var o *handoff.SketchPart
		for at, hits := range s.cells {
			if hits == 0 {
				continue
			}
			if o == nil || len(o.Cells) == maxCells {
				o = &handoff.SketchPart{Index: uint8(i), Phase: s.turn, Window: s.window, End: s.end, Domains: s.domains}
				out = append(out, o)
			}
			o.Cells = append(o.Cells, handoff.Cell{At: uint16(at), Hits: hits})
		}
	}
	return out
}

// take takes in a piece of another member's sketch; false if it cannot be one.
func (k *sketches) take(o *handoff.SketchPart, now int64) bool {
	if int(o.Index) >= shards || o.Phase < 1 || o.Phase > 2 || o.Window < 0 || o.Window > 0 && o.End-now > 3*int64(o.Window)+int64(ahead) {
		return false
	}
	for _, c := range o.Cells {
		if int(c.At) >= sketchRows*sketchColumns {
			return false
		}
	}
	if o.End+int64(ahead) <= now {
		return true // it has passed
	}
	p := &k.parts[o.Index]
	p.mu.Lock()
	defer p.mu.Unlock()
	s := k.grow(p, o.Window, o.Phase, now)
	s.end = max(s.end, o.End)
	s.kinds |= 1 << ownedTable
	for i := range s.domains {
		s.domains[i] |= o.Domains[i]
	}
	for _, c := range o.Cells {
		s.cells[c.At] = max(s.cells[c.At], c.Hits)
	}
	return true
}

// completeEntry makes e complete: this member decides its key from now on, and others may have counted it in sketches since e was written. It returns
// nil if there is no room for that: the sketch counts all that is known then.
func (s *shard) completeEntry(h *shardOp, e *entry) *entry {
	e.setComplete()
	if s.absorbSketches(h, e) {
		return e
	}
	s.moveToSketch(h, &s.state)
	s.tables[ownedTable].remove(h.hash, h.Key)
	return nil
}

// absorbSketches makes e, of the owned table, count no less than sketches have counted of its key. It reports whether there was room, and leaves
// what e would have to count in s.state if not.
func (s *shard) absorbSketches(h *shardOp, e *entry) bool {
	if s.sketches.live.Load() == 0 {
		return true
	}
	r := h.Request.Rule
	s.load(e, r, &s.state)
	if !s.sketches.addTo(h, &s.state, s.bootID) {
		return true
	}
	r.Trim(&s.state, h.now)
	until := e.until()
	if !s.store(e, r, &s.state) {
		return false
	}
	e.prolong(until)
	return true
}

// addTo charges writer in st for what sketches have counted of h's key beyond st, and reports whether that was anything. It looks at the windows
// before and after the current one, too: other members' clocks may be behind or ahead.
func (k *sketches) addTo(h *shardOp, st *limit.State, writer uint64) (added bool) {
	r := h.Request.Rule
	raise := func(at int64, est uint64) {
		if used := saturatingSub(r.Used(st, at), untold(st, r, at)); est > used {
			r.Take(st, at, writer, est-used)
			added = true
		}
	}
	w := r.Index(h.now)
	if r.Algorithm != limit.FixedWindow {
		raise(h.now, saturatingAdd(k.estimate(h), k.estimateAt(h, w+1)))
		return added
	}
	if r.End(w-1)+int64(ahead) > h.now {
		raise(r.End(w-2), k.estimateAt(h, w-1))
	}
	raise(h.now, k.estimateAt(h, w))
	raise(r.End(w), k.estimateAt(h, w+1))
	return added
}

// untold is how much of what is used in st at that time no sketch has counted, at most: what members admitted under SHARE and told later. A bucket's
// level is rounded up, so that it may be a hit less.
func untold(st *limit.State, r limit.Rule, at int64) (hits uint64) {
	w, bucket := r.Index(at), r.Algorithm.Bucket()
	for _, f := range st.Slots {
		switch {
		case f.Writer&1 != 0 || f.Writer == limit.LostStateWriter || r.Algorithm == limit.FixedWindow && f.At != w:
		case bucket:
			hits = saturatingAdd(hits, saturatingSub(f.Charged, f.Refunded)/drain(uint64(r.End(0)), r.Limit))
		default:
			hits = saturatingAdd(hits, f.Charged)
		}
	}
	if bucket {
		hits++
	}
	return hits
}

// exportOverflow makes c, which has no slots, what the sketch has counted of its key.
func (s *shard) exportOverflow(hash uint64, now int64, c *handoff.CounterRecord) {
	if s.sketches.live.Load() == 0 || c.Rule.Validate() != nil {
		return
	}
	h := shardOp{Request: &Request{Key: c.Key, RingPos: c.RingPos, Domain: c.Domain, Rule: c.Rule}, now: now, hash: hash, table: ownedTable, rule: c.Rule}
	if s.sketches.addTo(&h, &c.State, s.bootID) {
		c.ExpiresAt = c.Rule.Expires(&c.State)
	}
}
