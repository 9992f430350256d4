package durable

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/journal"
)

// maxErrors is the number of errors of one journal that are logged.
const maxErrors = 4

// loaded lists what a Keeper has loaded.
type loaded struct {
	boots   []*formerBoot   // loaded, and not removed
	locked  map[uint64]bool // boots whose journals another process holds, or that cannot be opened now
	hidden  bool            // the directory cannot be read now, so that there may be others
	loads   int             // calls of Load that have found counters
	skipped map[uint64]bool // boots whose journals cannot be used, which are left alone
	live    bool            // some counters still count, so that a generation has to contain them
	written bool            // a generation was complete after they were loaded
	ring    *CompleteRing   // the newest one
	boot    map[uint64]bool // all boots whose journals were loaded
	ahead   []protocol.CounterRecord
}

// formerBoot is a journal that was loaded.
type formerBoot struct {
	id     uint64
	reader *journal.BootReader
	// keepUntil is when all of its counters have ended that found no room in the tables, in Unix nanoseconds.
	keepUntil int64
}

// Recovery describes what Load has found.
type Recovery struct {
	Boots    int           // journals that were loaded
	Locked   int           // journals that another process holds, or that cannot be opened now
	Held     []uint64      // the boots of these
	Hidden   bool          // the directory cannot be read now
	Skipped  int           // journals that cannot be used, or only in part
	Counters int           // counters that were added to the tables
	Bad      int           // damaged or missing blocks
	Clean    bool          // all of them are of boots that have stopped in good order
	Ring     *CompleteRing // the newest ring that a journal names; nil: none
	OfRing   int           // journals of members of that ring that were loaded so far
}

// Load merges the journals of all former boots that no process holds into the Node. What they reserved ahead is not
// included; see ChargeAhead. now returns the time in Unix nanoseconds. Load returns early, without some journals, when ctx
// ends.
func (k *Keeper) Load(ctx context.Context, now func() int64) Recovery {
	var res Recovery
	defer func() { k.changed(Change{Kind: Loaded, Recovery: res}) }()
	l := &k.loaded
	boots, err := journal.Boots(k.o.Journal.FS, k.o.Journal.Dir, k.o.Journal.Label)
	if res.Hidden = err != nil; res.Hidden {
		if !l.hidden {
			k.log.Error("journals cannot be read; retrying", "dir", k.o.Journal.Dir, "error", err)
		}
		l.hidden = true
		return res
	}
	l.hidden = false
	if l.boot == nil {
		l.boot, l.skipped = map[uint64]bool{}, map[uint64]bool{}
	}
	wasLocked := l.locked
	l.locked = map[uint64]bool{}
	before := k.o.Node.Counters()
	for _, b := range boots {
		if b.ID == k.o.Journal.Boot || l.boot[b.ID] || l.skipped[b.ID] {
			continue
		}
		if b.Unknown {
			res.Skipped++
			k.log.Warn("not a journal; left alone", "dir", b.Dir())
			continue
		}
		p := bootLoad{k: k, ctx: ctx, boot: b.ID, now: now, known: wasLocked[b.ID]}
		p.load(b, &res)
	}
	res.Locked, res.Held = len(l.locked), slices.Sorted(maps.Keys(l.locked))
	res.Ring, res.Counters = l.ring, max(0, k.o.Node.Counters()-before)
	k.metrics.loaded.Add(float64(res.Counters))
	if l.ring != nil {
		for _, m := range l.ring.Members {
			if l.boot[m.Boot] {
				res.OfRing++
			}
		}
	}
	return res
}

// bootLoad loads the journal of one boot.
type bootLoad struct {
	k         *Keeper
	ctx       context.Context
	boot      uint64
	known     bool // the journal could not be opened before, which was logged
	now       func() int64
	records   recordReader
	keepUntil int64
	live      int // records of counters that still count
	malformed int
	ring      *CompleteRing
	included  []uint64 // boots whose counters the journal contains
	ahead     []protocol.CounterRecord
	reserved  map[[2]uint64]int // index in ahead, by key
}

// load opens and reads the journal.
func (p *bootLoad) load(b journal.Boot, res *Recovery) {
	k, l := p.k, &p.k.loaded
	if b.RemoveEmpty() { // there is nothing to load; if its boot is just beginning, no member has to wait for it
		l.boot[b.ID] = true
		return
	}
	r, err := b.Open()
	switch {
	case errors.Is(err, fs.ErrNotExist): // another member has removed it
		return
	case err != nil:
		l.locked[b.ID] = true
		if !p.known && errors.Is(err, journal.ErrLocked) {
			k.log.Info("journal is held by another process; retrying", "dir", b.Dir())
		} else if !p.known {
			k.log.Error("journal cannot be opened; retrying", "dir", b.Dir(), "error", err)
		}
		return
	}
	h := r.Header()
	if h.Boot != 0 && h.Scheme != k.o.Journal.Scheme {
		l.skipped[b.ID] = true
		res.Skipped++
		k.log.Warn("journal of another version of keys; left alone", "dir", b.Dir(), "version", h.Scheme)
		_ = r.Close()
		return
	}
	report, err := r.Read(p.visit)
	p.reserved = nil
	if err == nil && report.UnreadableFiles == 0 && p.malformed == 0 {
		l.boots = append(l.boots, &formerBoot{b.ID, r, p.keepUntil})
	} else {
		_ = r.Close() // some of it cannot be used, and so it stays
		l.skipped[b.ID] = true
		res.Skipped++
	}
	p.add(b, &report, res)
}

// add adds what was read to what the Keeper has loaded.
func (p *bootLoad) add(b journal.Boot, report *journal.LoadReport, res *Recovery) {
	k, l := p.k, &p.k.loaded
	l.boot[b.ID] = report.UnreadableFiles == 0
	for _, boot := range p.included {
		l.boot[boot] = l.boot[boot] || l.boot[b.ID]
	}
	if p.live > 0 {
		l.live, l.written = true, false
		l.loads++
	}
	if !report.Clean { // otherwise, nothing was admitted after its last record
		l.ahead = append(l.ahead, p.ahead...)
	}
	if p.ring != nil && (l.ring == nil || p.ring.At > l.ring.At) {
		l.ring = p.ring
	}
	res.Clean = report.Clean && (res.Clean || res.Boots == 0)
	res.Boots++
	bad := report.BadBlocks + int(min(report.MissingBlocks, 1<<31)) + report.UnreadableFiles + p.malformed
	res.Bad += bad
	k.metrics.bad.Add(float64(bad))
	k.log.Info("journal loaded", "dir", b.Dir(), "records", p.live, "clean", report.Clean, "bad_blocks", bad)
	for _, err := range report.Errors[:min(len(report.Errors), maxErrors)] {
		k.log.Error("journal is damaged; the rest of it was loaded", "dir", b.Dir(), "error", err)
	}
}

// visit processes one block.
func (p *bootLoad) visit(b journal.Block) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	ring, err := p.records.parse(b.Payload)
	if err != nil {
		p.malformed++
		p.k.log.Error("malformed record in a journal", "file", b.File, "offset", b.Offset, "error", err)
		return nil
	}
	if ring != nil {
		p.included = append(p.included, ring.Included...)
		if p.ring == nil || ring.At >= p.ring.At {
			p.ring = ring
		}
		return nil
	}
	now := p.now()
	cs := p.records.Counters
	for i := range cs {
		p.reserve(&cs[i], p.records.ahead[i])
	}
	last := now
	for i := range cs {
		if cs[i].ExpiresAt > now-int64(limit.ClockTolerance) {
			p.live++
			last = max(last, cs[i].ExpiresAt)
		}
	}
	if p.k.o.Node.Load(now, cs) > 0 {
		p.keepUntil = max(p.keepUntil, last)
	}
	return nil
}

// reserve records what c has reserved ahead. The latest record of a key counts.
func (p *bootLoad) reserve(c *protocol.CounterRecord, ahead uint32) {
	i, known := p.reserved[c.Key]
	if ahead == 0 && !known {
		return
	}
	x := *c
	x.State = limit.State{}
	if n := len(c.State.Slots); n > 0 {
		at := c.State.Slots[n-1].At
		s := limit.Slot{At: at, Writer: p.boot, Charged: uint64(ahead)}
		for _, f := range c.State.Slots {
			if f.At == at && f.Writer == p.boot {
				s.Charged, s.Refunded = limit.SaturatingAdd(f.Charged, uint64(ahead)), f.Refunded
			}
		}
		x.State.Slots = []limit.Slot{s}
	}
	if known {
		p.ahead[i] = x
		return
	}
	if p.reserved == nil {
		p.reserved = map[[2]uint64]int{}
	}
	p.reserved[c.Key] = len(p.ahead)
	p.ahead = append(p.ahead, x)
}

// ReservedAhead returns how many counters had hits reserved ahead in journals that Load has loaded.
func (k *Keeper) ReservedAhead() int { return len(k.loaded.ahead) }

// ChargeAhead charges what journals had reserved ahead, or with charge false, forgets it, because the counters'
// successors are live and have every charge. It is called before the member takes its place on the ring.
func (k *Keeper) ChargeAhead(now int64, charge bool) {
	if cs := k.loaded.ahead; charge && len(cs) > 0 {
		for part := range slices.Chunk(cs, protocol.MaxCounters) {
			k.o.Node.Load(now, part)
		}
	}
	k.loaded.ahead = nil
}

// waits reports whether journals were found that could not be loaded yet.
func (l *loaded) waits() bool { return l.hidden || len(l.locked) > 0 }

// retire removes the journals of former boots of which a complete generation contains everything.
func (k *Keeper) retire(now int64) {
	l := &k.loaded
	if len(l.boots) == 0 || l.live && !l.written {
		return
	}
	l.boots = slices.DeleteFunc(l.boots, func(b *formerBoot) bool {
		if b.keepUntil > now-int64(limit.ClockTolerance) {
			return false
		}
		if err := b.reader.Remove(); err != nil {
			k.log.Warn("journal of a former boot cannot be removed", "error", err)
		}
		_ = b.reader.Close()
		return true
	})
}

// Release lets other members load the journals that were loaded and are not replaced yet. The next Load loads them again
// if they are still there. Members that share a directory would otherwise wait for each other.
func (k *Keeper) Release() {
	l := &k.loaded
	for _, b := range l.boots {
		delete(l.boot, b.id)
	}
	l.close()
}

// close closes the journals of former boots, which stay.
func (l *loaded) close() {
	for _, b := range l.boots {
		_ = b.reader.Close()
	}
	l.boots = nil
}
