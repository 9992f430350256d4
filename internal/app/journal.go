package app

import (
	"fmt"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/durable"
	"github.com/keyward/keyward/internal/membership"
)

// journalStatus is the state of the member's journal for /v1/self and the timeline. The zero value is that of a member that
// has not loaded its journals. It is safe for concurrent use.
type journalStatus struct {
	mu       sync.Mutex // guards all below
	state    durable.ChangeKind
	problem  string // why it is down; empty: it is not
	journals int    // former journals that were loaded
	counters int    // that they added
	skipped  int    // journals that cannot be used, the most that one search has found
}

// onJournal processes a change of the journal's state.
func (m *sidecar) onJournal(s durable.Change) {
	m.timeline.addJournal(time.Now(), &m.data.status, s)
}

// selfData describes the journal for /v1/self. It returns nil without --data.
func (m *sidecar) selfData() *api.SelfData {
	if m.data.keeper == nil {
		return nil
	}
	files := m.data.keeper.Status()
	d := &api.SelfData{
		Dir: m.Flags.Data, Window: m.Flags.DataWindow.String(), Bytes: files.Bytes, MaxBytes: int64(m.Flags.DataSize),
		OwedHits: m.peer.Stats().UnwrittenIn, Generation: files.Generation,
	}
	if c := m.cluster.Load(); c != nil {
		d.Missing = c.View().Missing
	}
	d.State = "loading"
	if m.data.runner.Load() == nil {
		return d
	}
	m.data.status.describe(d)
	return d
}

// describe sets what is known of the journal after it was loaded.
func (j *journalStatus) describe(d *api.SelfData) {
	j.mu.Lock()
	defer j.mu.Unlock()
	d.Loaded, d.Journals, d.Problem = j.counters, j.journals, j.problem
	switch j.state {
	case durable.Down:
		d.State = "down"
	case durable.Stalled:
		d.State = "stalled"
	default:
		d.State, d.Up = "up", true
	}
}

// addJournal adds a change of the member's journal, of which j is the last known status. It does not repeat a state.
func (t *timeline) addJournal(now time.Time, j *journalStatus, s durable.Change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	say := func(format string, args ...any) {
		t.Add(api.TimelineEvent{Time: now, Kind: api.JournalEvent, Text: fmt.Sprintf(format, args...)})
	}
	was := j.state
	switch s.Kind {
	case durable.Loaded:
		j.load(&s.Recovery, say)
		return
	case durable.Down:
		j.problem = s.Err.Error()
		say("the journal cannot be written, counts are only in memory: %v", s.Err)
	case durable.Stalled:
		j.problem = "the disk does not answer"
		say("the journal is stalled: durability: strict does not wait for the disk")
	case durable.Up:
		j.problem = ""
		if was == durable.Down || was == durable.Stalled {
			say("the journal can be written again")
		}
	}
	j.state = s.Kind
}

// load records what was loaded from former journals.
func (j *journalStatus) load(r *durable.Recovery, say func(format string, args ...any)) {
	j.journals, j.counters = j.journals+r.Boots, j.counters+r.Counters
	if r.Boots > 0 {
		say("loaded %s of %s", countOf(r.Counters, "counter"), countOf(r.Boots, "journal"))
	}
	if r.Bad > 0 {
		say("skipped %s of former journals: damaged or missing", countOf(r.Bad, "block"))
	}
	if r.Skipped > j.skipped { // a later search finds some of them again
		j.skipped = r.Skipped
		say("%s cannot be used, or only in part: see the log", countOf(r.Skipped, "journal"))
	}
}

// addMissing adds that this member waits for journals of the last ring, or joins without them.
func (t *timeline) addMissing(now time.Time, old, v *membership.View) {
	say := func(text string) { t.Add(api.TimelineEvent{Time: now, Kind: api.JournalEvent, Text: text}) }
	missing := countOf(v.Missing, "journal") + " of the last ring"
	switch {
	case v.Joined && !old.Joined && v.Missing > 0:
		say("joined without " + missing + ": limits may be exceeded by what only they contain")
	case !v.Joined && v.Missing > 0 && old.Missing == 0:
		say("waiting for " + missing)
	case v.Missing == 0 && old.Missing > 0:
		say("all journals of the last ring are loaded")
	}
}

// countOf returns a number with its noun in the singular or plural.
func countOf(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
