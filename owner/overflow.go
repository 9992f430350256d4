package owner

import (
	"github.com/keyward/keyward/handoff"
)

// maxCells of a sketch go in one message.
const maxCells = 8192

// give returns what part i has counted of owners' hits, in pieces for messages.
func (k *sketches) give(i int, now int64) (out []*handoff.Overflow) {
	if k.live.Load() == 0 {
		return nil
	}
	p := &k.parts[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	for j := range p.list {
		s := &p.list[j]
		if s.end+int64(ahead) <= now || s.kinds>>owned&1 == 0 { // the receiver's clock may be behind
			continue
		}
		var o *handoff.Overflow
		for at, hits := range s.cells {
			if hits == 0 {
				continue
			}
			if o == nil || len(o.Cells) == maxCells {
				o = &handoff.Overflow{Part: uint8(i), Turn: s.turn, Window: s.window, End: s.end, Domains: s.domains}
				out = append(out, o)
			}
			o.Cells = append(o.Cells, handoff.Cell{At: uint16(at), Hits: hits})
		}
	}
	return out
}

// take takes in a piece of another member's sketch; false if it cannot be one.
func (k *sketches) take(o *handoff.Overflow, now int64) bool {
	if int(o.Part) >= shards || o.Turn < 1 || o.Turn > 2 || o.Window < 0 || o.Window > 0 && o.End-now > 3*int64(o.Window)+int64(ahead) {
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
	p := &k.parts[o.Part]
	p.mu.Lock()
	defer p.mu.Unlock()
	s := k.grow(p, o.Window, o.Turn, now)
	s.end = max(s.end, o.End)
	s.kinds |= 1 << owned
	for i := range s.domains {
		s.domains[i] |= o.Domains[i]
	}
	for _, c := range o.Cells {
		s.cells[c.At] = max(s.cells[c.At], c.Hits)
	}
	return true
}

// exportOverflow makes c, which has no slots, what the sketch has counted of its key.
func (s *shard) exportOverflow(hash uint64, now int64, c *handoff.Counter) {
	if s.over.live.Load() == 0 || c.Rule.Valid() != nil {
		return
	}
	h := hit{Question: &Question{Key: c.Key, Owner: c.Owner, Domain: c.Domain, Rule: c.Rule}, now: now, hash: hash, kind: owned, rule: c.Rule}
	if est := s.over.estimate(&h); est > 0 {
		c.Rule.Take(&c.State, now, s.inst, est)
		c.End = c.Rule.Expires(&c.State)
	}
}
