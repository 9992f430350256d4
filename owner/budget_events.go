package owner

import (
	"maps"

	"github.com/keyward/keyward/internal/limit"
)

const (
	// maxBudgetMarks is the number of keys of one shard for which a crossed threshold is remembered.
	maxBudgetMarks = 1024
	// maxBudgetEvents is the number of BudgetEvents of one shard that wait for a Tick.
	maxBudgetEvents = 256
)

// budgetPercents are the parts of a limit that a BudgetEvent reports.
var budgetPercents = [...]uint8{80, 100}

// BudgetEvent reports that a charge of a key with holds has reached a part of its limit. There is about one event for each
// part of a limit, key and window: one more if another member takes the key over.
type BudgetEvent struct {
	Key     Key
	Percent uint8  // 80 or 100
	Used    uint64 // the count after the charge, held hits included
	Limit   uint32
	At      int64 // Unix nanoseconds
	Audit   bool  // the rule has audit logs
}

// budgetMark is the largest part of a limit that was reported, until the window in which it was ends.
type budgetMark struct {
	until   int64
	percent uint8
}

// budgetEvents holds the BudgetEvents of one shard. The shard's mu guards it. The zero value is empty.
type budgetEvents struct {
	marks   map[Key]budgetMark
	waiting []BudgetEvent
}

// crossedPercent returns the largest of budgetPercents that a charge from before to after reaches first, by its index, or
// -1.
func crossedPercent(before, after uint64, depth uint32) int {
	for i := len(budgetPercents) - 1; i >= 0; i-- {
		at := (uint64(depth)*uint64(budgetPercents[i]) + 99) / 100
		if before < at && at <= after {
			return i
		}
	}
	return -1
}

// noteBudget records the charge of op, which has raised the count of a key with holds from before to after. Slots of
// requests in flight are taken and given back all the time, so they are no budget.
func (s *shard) noteBudget(op *shardOp, before, after uint64) {
	r := op.Request.Rule
	i := -1
	if r.Algorithm != limit.InFlight {
		i = crossedPercent(before, after, r.Depth())
	}
	if i < 0 {
		return
	}
	b, percent := &s.budgets, budgetPercents[i]
	m, known := b.marks[op.Key]
	if known && m.until > op.now && m.percent >= percent {
		return // reported; hits that were given back are charged again
	}
	if !known && !b.makeRoom(op.now) || len(b.waiting) >= maxBudgetEvents {
		s.counts.BudgetEventsLost++
		return
	}
	s.counts.BudgetEvents[i]++
	until := op.now + int64(r.Window)
	if r.Algorithm == limit.FixedWindow {
		until = r.End(r.Index(op.now))
	}
	b.marks[op.Key] = budgetMark{until: until, percent: percent}
	b.waiting = append(b.waiting, BudgetEvent{
		Key: op.Key, Percent: percent, Used: after, Limit: r.Depth(), At: op.now, Audit: op.Audit,
	})
}

// makeRoom makes room for one more mark. It returns false if there is none.
func (b *budgetEvents) makeRoom(now int64) bool {
	if b.marks == nil {
		b.marks = map[Key]budgetMark{}
	}
	if len(b.marks) >= maxBudgetMarks {
		maps.DeleteFunc(b.marks, func(_ Key, m budgetMark) bool { return m.until <= now })
	}
	return len(b.marks) < maxBudgetMarks
}

// take moves the events to fx.
func (b *budgetEvents) take(fx *Ready) {
	fx.Budgets = append(fx.Budgets, b.waiting...)
	b.waiting = nil
}
