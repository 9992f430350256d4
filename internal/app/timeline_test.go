package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/durable"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// seen returns a view of member a. Members are written as ID, state (j, a or l) and boot ID, as in "b-a-1"; active
// ones are on the ring.
func seen(left string, members ...string) *membership.View {
	v := &membership.View{Self: "a", Joined: true}
	var places []ring.Member
	for _, text := range members {
		var m membership.Member
		parts := strings.Split(text, "-")
		m.ID = ring.ID(parts[0])
		m.State = map[string]membership.MemberState{"j": membership.Joining, "a": membership.Active, "l": membership.Leaving, "o": membership.Joining}[parts[1]]
		if parts[1] == "o" {
			m.Role = membership.RoleObserver
		}
		_, _ = fmt.Sscan(parts[2], &m.BootID)
		v.Members = append(v.Members, m)
		if m.State == membership.Active {
			places = append(places, ring.Member{ID: m.ID, BootID: m.BootID, Weight: 1})
		}
	}
	v.Ring = ring.New(places)
	if left != "" {
		v.Left = []ring.ID{ring.ID(left)}
	}
	return v
}

// texts returns the events since the last call, oldest first.
func texts(l *timeline, known *int) (out []string) {
	all := l.Events()
	for _, e := range all[:len(all)-*known] {
		text := string(e.Kind) + ": " + e.Text
		if e.State != "" {
			text += " [" + e.Member + " " + e.State + "]"
		}
		out = append(out, text)
	}
	*known = len(all)
	slices.Reverse(out)
	return out
}

func TestTimelineOfACluster(t *testing.T) {
	var l timeline
	now, known := time.Unix(100, 0), 0
	at := func(seconds float64) time.Time { return now.Add(time.Duration(seconds * float64(time.Second))) }
	two := seen("", "a-a-1", "b-a-2")
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"begin", func() { l.addView(at(0), two) }, []string{
			"member: a appeared: active [a active]", "member: b appeared: active [b active]", "ring: a ring of 2: +a +b", "member: a joined the cluster",
		}},
		{"complete", func() { l.addProgress(at(0.25), membership.Progress{CompleteRing: two.Ring.Fingerprint()}) }, []string{
			"handoff: this member has all counters of the ring, after 250ms",
		}},
		{"the same again", func() {
			l.addView(at(1), two)
			l.addProgress(at(1), membership.Progress{CompleteRing: two.Ring.Fingerprint()})
		}, nil},
		{"c comes", func() { l.addView(at(2), seen("", "a-a-1", "b-a-2", "c-j-3")) }, []string{"member: c appeared: joining [c joining]"}},
		{"c is on the ring", func() { l.addView(at(3), seen("", "a-a-1", "b-a-2", "c-a-3", "x-o-9")) }, []string{
			"member: c is active [c active]", "member: observer x observes", "ring: a ring of 3: +c; 33.1 % of the keys have a new owner",
		}},
		{"b drains", func() { l.addView(at(4), seen("", "a-a-1", "b-l-2", "c-a-3", "x-o-9")) }, []string{
			"member: b is leaving [b leaving]", "ring: a ring of 2: -b; 32.3 % of the keys have a new owner",
		}},
		{"b is gone, and x", func() { l.addView(at(5), seen("b", "a-a-1", "c-a-3")) }, []string{"member: b left [b left]", "member: observer x left"}},
		{"c restarts", func() { l.addView(at(6), seen("b", "a-a-1", "c-j-4")) }, []string{
			"member: c restarted: joining [c joining]", "ring: a ring of 1: -c; 48.9 % of the keys have a new owner",
		}},
		{"c dies", func() { l.addView(at(7), seen("b", "a-a-1")) }, []string{"member: c failed: no member can reach it [c lost]"}},
		{"void", func() { l.addProgress(at(8), membership.Progress{}) }, []string{"handoff: ownership revoked: other members may have taken over"}},
	} {
		step.do()
		if got := texts(&l, &known); !slices.Equal(got, step.want) {
			t.Errorf("%s:\n got %q\nwant %q", step.name, got, step.want)
		}
	}
	if e := l.Events()[slices.IndexFunc(l.Events(), func(e api.TimelineEvent) bool { return e.Kind == api.RingEvent })]; e.Fingerprint == "" || !e.Time.Equal(at(6)) || e.Moved <= 0.3 {
		t.Errorf("the last ring: %+v", e)
	}
}

func TestTimelineOfHotKeys(t *testing.T) {
	var l timeline
	known := 0
	r := hotkey.Route{Domain: "d", Name: "k=<b>", Owner: "<b>", Mode: hotkey.Spread, Author: "a", Subs: []hotkey.SubKey{{Key: "<b>#0", Member: "b"}, {Key: "<b>#1", Member: "c"}}}
	fresh := r
	fresh.Version++
	capped := hotkey.Route{Domain: "d", Owner: "x", Mode: hotkey.Cap, Manual: true}
	l.addRoutes(time.Unix(1, 0), []hotkey.Route{r})
	l.addRoutes(time.Unix(2, 0), []hotkey.Route{fresh}) // only refreshed
	l.addRoutes(time.Unix(3, 0), []hotkey.Route{fresh, capped})
	l.addRoutes(time.Unix(4, 0), []hotkey.Route{capped})
	want := []string{
		"hot: hot key k=<b> of d: split to b, c", "hot: hot key x of d: cap, manual", "hot: hot key k=<b> of d: no route",
	}
	if got := texts(&l, &known); !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

func TestTimelineOfRules(t *testing.T) {
	var l timeline
	known := 0
	bad := source.LoadResult{Err: errors.New("a.yaml: no domain")}
	for _, e := range []source.LoadResult{bad, bad, {}, bad} {
		l.addLoad(time.Unix(1, 0), e)
	}
	want := []string{"rules: rules refused: a.yaml: no domain", "rules: rules refused: a.yaml: no domain"}
	if got := texts(&l, &known); !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

func TestTimelineOfTheJournal(t *testing.T) {
	var l timeline
	var j journalStatus
	now, known := time.Unix(100, 0), 0
	waiting, late, joined, done := seen("", "a-j-1"), seen("", "a-j-1"), seen("", "a-j-1"), seen("", "a-j-1")
	waiting.Joined, waiting.Missing = false, 2
	late.Joined, late.Missing = false, 1
	joined.Missing = 1
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"nothing to load", func() { l.addJournal(now, &j, durable.Change{Kind: durable.Loaded}) }, nil},
		{"load", func() {
			l.addJournal(now, &j, durable.Change{Kind: durable.Loaded, Recovery: durable.Recovery{Boots: 2, Counters: 1, Bad: 3, Skipped: 1}})
		}, []string{
			"journal: loaded 1 counter of 2 journals", "journal: skipped 3 blocks of former journals: damaged or missing",
			"journal: 1 journal cannot be used, or only in part: see the log",
		}},
		{"search again", func() {
			l.addJournal(now, &j, durable.Change{Kind: durable.Loaded, Recovery: durable.Recovery{Skipped: 1}})
		}, nil},
		{"begin", func() { l.addJournal(now, &j, durable.Change{Kind: durable.Up}) }, nil},
		{"full", func() {
			l.addJournal(now, &j, durable.Change{Kind: durable.Down, Err: errors.New("no space left on device")})
		}, []string{
			"journal: the journal cannot be written, counts are only in memory: no space left on device",
		}},
		{"room", func() { l.addJournal(now, &j, durable.Change{Kind: durable.Up}) }, []string{"journal: the journal can be written again"}},
		{"stall", func() { l.addJournal(now, &j, durable.Change{Kind: durable.Stalled}) }, []string{
			"journal: the journal is stalled: durability: strict does not wait for the disk",
		}},
		{"wait", func() { l.addView(now, waiting) }, []string{"member: a appeared: joining [a joining]", "journal: waiting for 2 journals of the last ring"}},
		{"wait for one", func() { l.addView(now, late) }, nil},
		{"join without one", func() { l.addView(now, joined) }, []string{
			"member: a joined the cluster", "journal: joined without 1 journal of the last ring: limits may be exceeded by what only they contain",
		}},
		{"it is loaded", func() { l.addView(now, done) }, []string{"journal: all journals of the last ring are loaded"}},
	} {
		step.do()
		if got := texts(&l, &known); !slices.Equal(got, step.want) {
			t.Errorf("%s:\n got %q\nwant %q", step.name, got, step.want)
		}
	}
	var d api.SelfData
	if j.describe(&d); d.State != "stalled" || d.Up || d.Problem == "" || d.Loaded != 1 || d.Journals != 2 {
		t.Errorf("%+v", d)
	}
}
