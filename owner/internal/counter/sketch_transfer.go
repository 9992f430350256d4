package counter

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
)

// maxCells is the most cells of a sketch in one message.
const maxCells = 8192

// Export returns what part i has counted for TableOwned, in pieces for messages.
func (k *Sketches) Export(i int, now int64) (out []*protocol.SketchPart) {
	if !k.Live() {
		return nil
	}
	p := &k.parts[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	for j := range p.list {
		s := &p.list[j]
		if s.end+ahead <= now || s.tables>>TableOwned&1 == 0 { // the receiver's clock may be behind
			continue
		}
		var o *protocol.SketchPart
		for at, hits := range s.cells {
			if hits == 0 {
				continue
			}
			if o == nil || len(o.Cells) == maxCells {
				o = &protocol.SketchPart{Index: uint8(i), Phase: s.phase, Window: s.window, End: s.end, Domains: s.domains}
				out = append(out, o)
			}
			o.Cells = append(o.Cells, protocol.Cell{At: uint16(at), Hits: hits})
		}
	}
	return out
}

// Import merges a piece of another member's sketch. It returns false if o is not valid.
func (k *Sketches) Import(o *protocol.SketchPart, now int64) bool {
	if int(o.Index) >= Shards || o.Phase < 1 || o.Phase > 2 ||
		o.Window < 0 || o.Window > 0 && o.End-now > 3*int64(o.Window)+ahead {
		return false
	}
	for _, c := range o.Cells {
		if int(c.At) >= sketchRows*sketchColumns {
			return false
		}
	}
	if o.End+ahead <= now {
		return true // it has no effect any more
	}
	p := &k.parts[o.Index]
	p.mu.Lock()
	defer p.mu.Unlock()
	s := k.counted(p, o.Window, o.Phase, now)
	s.end = max(s.end, o.End)
	s.tables |= 1 << TableOwned
	for i := range s.domains {
		s.domains[i] |= o.Domains[i]
	}
	for _, c := range o.Cells {
		s.cells[c.At] = max(s.cells[c.At], c.Hits)
	}
	return true
}

// AddTo charges to writer in st what sketches have counted of r's key in TableOwned beyond st, by r's full rule. It
// reports whether that was anything. It includes the windows before and after the current one, because other members'
// clocks may be behind or ahead.
func (k *Sketches) AddTo(r Ref, st *limit.State, writer uint64) (added bool) {
	rule := r.Full
	raise := func(at int64, est uint64) {
		if used := saturatingSub(rule.Used(st, at), fromShares(st, rule, at)); est > used {
			chargeAdmitted(rule, st, at, writer, est-used)
			added = true
		}
	}
	w := rule.Index(r.Now)
	if rule.Algorithm != limit.FixedWindow {
		raise(r.Now, limit.SaturatingAdd(k.Estimate(r), k.estimateAt(&r, w+1)))
		return added
	}
	if rule.End(w-1)+ahead > r.Now {
		raise(rule.End(w-2), k.estimateAt(&r, w-1))
	}
	raise(r.Now, k.estimateAt(&r, w))
	raise(rule.End(w), k.estimateAt(&r, w+1))
	return added
}

// fromShares returns an upper bound of the used hits of st at that time that no sketch has counted: those that members
// admitted from their local shares and reported later. The level of a bucket is rounded up, so it adds one hit.
func fromShares(st *limit.State, r limit.Rule, at int64) (hits uint64) {
	w, bucket := r.Index(at), r.Algorithm.Bucket()
	for _, f := range st.Slots {
		switch {
		case f.Writer&1 != 0 || f.Writer == limit.LostStateWriter || r.Algorithm == limit.FixedWindow && f.At != w:
		case bucket:
			hits = limit.SaturatingAdd(hits, saturatingSub(f.Charged, f.Refunded)/Drain(uint64(r.End(0)), r.Limit))
		default:
			hits = limit.SaturatingAdd(hits, f.Charged)
		}
	}
	if bucket {
		hits++
	}
	return hits
}

// Drain returns the nanoseconds in which one hit drains from a bucket that drains limit hits in width nanoseconds.
func Drain(width uint64, limit uint32) uint64 { return (width-1)/uint64(max(1, limit)) + 1 }
