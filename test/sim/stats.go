package sim

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/keyward/keyward/owner"
)

// summary is the sum of many runs: how often each event occurred, and how close the bounds were.
type summary struct {
	Seeds, Decisions, Events int
	Fewest                   int // of a seed without a violation
	Counts                   map[string]int
	BoundUse                 map[faultKind]boundUse
	Rows                     map[string]boundUse // by the rows of the table of outages that applied
	Calm                     calmUse
}

// calmUse is how well regions used their limits without faults.
type calmUse struct {
	Admitted, Limit uint64 // where more was requested than the limit
	Requests, Wrong uint64 // requests, and refused ones, where at most 80 % of the limit were requested
}

func (c *calmUse) add(o *calmUse) {
	c.Admitted, c.Limit, c.Requests, c.Wrong = c.Admitted+o.Admitted, c.Limit+o.Limit, c.Requests+o.Requests, c.Wrong+o.Wrong
}

// boundUse is how close one kind of windows came to its bound.
type boundUse struct {
	spans, over int
	excess      float64 // the most admitted beyond a limit
	room        float64 // the least that remained up to the bound where the limit was exceeded
	part        float64 // the largest fraction of a bound that was used
}

// newSummary returns an empty Summary.
func newSummary() *summary {
	s := &summary{Counts: map[string]int{}, BoundUse: map[faultKind]boundUse{}, Rows: map[string]boundUse{}}
	for _, name := range expectedCounts() {
		s.Counts[name] = 0
	}
	return s
}

// expectedCounts returns the events that a long series of runs must have.
func expectedCounts() []string {
	names := []string{
		"message: Ping", "message: Ping Owed", "message: Pong", "message: Pong Confirmed",
		"message: Chunk", "message: Chunk Shadow", "message: Chunk Extra",
		"message: Ack", "message: Ack Shadow", "message: Replica", "message: Got", "message: SealReq",
		"answer: Ask", "answer: Wait", "answer: Resolved", "answer: Canceled", "answer: not the owner",
		"authority: full", "authority: part", "authority: share",
		"transition: started", "transition: joining to active", "transition: active to leaving",
		"transition: leaving to left",
		"transition: ring adopted", "transition: member lost", "transition: N_ref decayed",
		"fault: lost message", "fault: repeated message", "fault: broken stream",
		"fault: crash", "fault: pause", "fault: link cut",
		"fault: link cut one way", "fault: partition", "fault: clock step", "fault: machine suspended",
		"fault: machine moved",
		"fence: by the peers' clocks",
		"rules: amount changed", "rules: window changed", "rules: algorithm changed", "rules: shard_by changed",
		"plan: rolled",
	}
	for _, s := range statusNames {
		names = append(names, "message: Sealed "+s)
	}
	return names
}

// expectedLeaseCounts returns the additional events that a series with leases must have.
func expectedLeaseCounts() []string {
	return []string{
		"lease: Ask for more", "lease: Ask that returns or reports", "lease: Ask that is old",
		"lease: Lend of more", "lease: Lend says last tokens", "lease: Lend says denial",
		"lease: Bulk Recall", "lease: Bulk Deny", "lease: Bulk Lift", "lease: Bulk Cool",
		"lease: admitted by its holder", "lease: refused by its holder", "lease: credit", "lease: reclaim",
		"lease: another owner, with leases out", "lease: hot, or never hot, by decree", "lease: calm windows used up",
		"approximate: report", "approximate: admitted by a copy", "rules: mechanism changed",
	}
}

func (s *summary) count(name string) { s.Counts[name]++ }

func (s *summary) authority(a owner.Authority) {
	s.Counts["authority: "+[...]string{"full", "part", "share", "open", "closed", "overflow", "cached", "shed", "static", "escrow"}[a]]++
}

// window counts a finished span.
func (s *summary) window(x *span) {
	n := s.BoundUse[x.faults]
	n.spans++
	s.BoundUse[x.faults] = n
}

// approach records how close admitted came to limit and bound.
func (s *summary) approach(x *span, admitted, limit, bound float64) {
	over := admitted - limit
	if over <= 0 {
		return
	}
	n := s.BoundUse[x.faults]
	if n.over == 0 || bound-over < n.room {
		n.room = bound - over
	}
	n.over++
	n.excess = max(n.excess, over)
	if bound > 0 {
		n.part = max(n.part, over/bound)
	}
	s.BoundUse[x.faults] = n
}

// approachRow records how close the admissions of a window came to its limit and what rows of the table of outages allow.
func (s *summary) approachRow(rows []string, admitted, limit, more uint64) {
	name := "no row: 0"
	switch {
	case len(rows) == 1:
		name = rows[0]
	case len(rows) > 1:
		name = "several rows"
	}
	n := s.Rows[name]
	n.spans++
	if over := float64(admitted) - float64(limit); over > 0 {
		n.add(boundUse{0, 1, over, float64(more) - over, over / float64(more)})
	}
	s.Rows[name] = n
}

// add adds the use of other windows.
func (n *boundUse) add(o boundUse) {
	if o.over > 0 && (n.over == 0 || o.room < n.room) {
		n.room = o.room
	}
	n.spans, n.over = n.spans+o.spans, n.over+o.over
	n.excess, n.part = max(n.excess, o.excess), max(n.part, o.part)
}

// add adds the results of one run or one worker.
func (s *summary) add(o *summary) {
	if o.Fewest > 0 && (s.Fewest == 0 || o.Fewest < s.Fewest) {
		s.Fewest = o.Fewest
	}
	s.Seeds, s.Decisions, s.Events = s.Seeds+o.Seeds, s.Decisions+o.Decisions, s.Events+o.Events
	for k, n := range o.Counts {
		s.Counts[k] += n
	}
	for t, b := range o.BoundUse {
		a := s.BoundUse[t]
		a.add(b)
		s.BoundUse[t] = a
	}
	for name, b := range o.Rows {
		a := s.Rows[name]
		a.add(b)
		s.Rows[name] = a
	}
	s.Calm.add(&o.Calm)
}

// rare returns the expected events that occurred less than n times.
func (s *summary) rare(n int, leases bool) []string {
	names := expectedCounts()
	if leases {
		names = append(names, expectedLeaseCounts()...)
	}
	var rare []string
	for _, name := range names {
		if s.Counts[name] < n {
			rare = append(rare, fmt.Sprintf("%s: %d", name, s.Counts[name]))
		}
	}
	return rare
}

// print prints all counts and bounds.
func (s *summary) print(w io.Writer) {
	fmt.Fprintf(w, "%d seeds, %d decisions (fewest in a seed: %d), %d events\n\n", s.Seeds, s.Decisions, s.Fewest,
		s.Events)
	for _, name := range slices.Sorted(maps.Keys(s.Counts)) {
		fmt.Fprintf(w, "%12d  %s\n", s.Counts[name], name)
	}
	fmt.Fprintf(w, "\n%10s %10s %12s %12s %12s  touched by\n", "windows", "over limit", "most over", "least room",
		"most of bound")
	for _, t := range slices.Sorted(maps.Keys(s.BoundUse)) {
		n := s.BoundUse[t]
		fmt.Fprintf(w, "%10d %10d %12.1f %12.1f %11.0f %%  %v\n", n.spans, n.over, n.excess, n.room, 100*n.part, t)
	}
	if len(s.Rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%10s %10s %12s %12s %12s  rows of the table of outages\n", "decisions", "over limit", "most over", "least room",
		"most of bound")
	for _, name := range slices.Sorted(maps.Keys(s.Rows)) {
		n := s.Rows[name]
		fmt.Fprintf(w, "%10d %10d %12.1f %12.1f %11.0f %%  %s\n", n.spans, n.over, n.excess, n.room, 100*n.part, name)
	}
	c := &s.Calm
	fmt.Fprintf(w, "\nwithout faults: %d of %d admitted (%.1f %%); %d of %d requests refused wrongly (%.2f %%)\n", c.Admitted, c.Limit,
		100*float64(c.Admitted)/float64(max(1, c.Limit)), c.Wrong, c.Requests, 100*float64(c.Wrong)/float64(max(1, c.Requests)))
}
