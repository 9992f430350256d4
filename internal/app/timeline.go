package app

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// timeline derives events from changes of the view, the handoff, the rules and the routes. The zero timeline is ready
// for use and safe for concurrent use.
type timeline struct {
	admin.Timeline

	mu       sync.Mutex // guards all below
	last     *membership.View
	adopted  time.Time // when last.Ring was adopted
	progress membership.Progress
	routes   map[[2]string]hotkey.Route // by domain and owner string
	refused  string                     // the last fault of the rules, or ""
}

// addView adds the changes between the last view and v.
func (t *timeline) addView(now time.Time, v *membership.View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.last
	if t.last = v; old == nil {
		old = &membership.View{Ring: &ring.Ring{}}
	}
	t.addMembers(now, old, v)
	if old.Ring.Fingerprint() != v.Ring.Fingerprint() {
		t.adopted = now
		t.Add(ringEvent(now, old.Ring, v.Ring))
	}
	if v.Joined && !old.Joined {
		t.Add(api.TimelineEvent{Time: now, Kind: api.MemberEvent, Text: fmt.Sprintf("%s joined the cluster", v.Self), Member: string(v.Self)})
	}
	t.addMissing(now, old, v)
	if v.Problem != "" && v.Problem != old.Problem {
		t.Add(api.TimelineEvent{Time: now, Kind: api.RingEvent, Text: fmt.Sprintf("%s is not on the ring: %s", v.Self, v.Problem), Member: string(v.Self)})
	}
}

// memberKey identifies a process in a view: a member and an observer may have the same ID.
type memberKey struct {
	id   ring.ID
	role membership.Role
}

func (t *timeline) addMembers(now time.Time, old, v *membership.View) {
	before := map[memberKey]*membership.Member{}
	for i := range old.Members {
		m := &old.Members[i]
		before[memberKey{m.ID, m.Role}] = m
	}
	say := func(m *membership.Member, state, what string) {
		who := string(m.ID)
		if m.Role == membership.RoleObserver {
			who, state = "observer "+who, ""
		}
		t.Add(api.TimelineEvent{Time: now, Kind: api.MemberEvent, Text: who + " " + what, Member: string(m.ID), State: state})
	}
	for i := range v.Members {
		m := &v.Members[i]
		at := memberKey{m.ID, m.Role}
		was := before[at]
		delete(before, at)
		switch state := m.State.String(); {
		case was == nil && m.Role == membership.RoleObserver:
			say(m, state, "observes")
		case was == nil:
			say(m, state, "appeared: "+state)
		case was.BootID != m.BootID:
			say(m, state, "restarted: "+state)
		case was.State != m.State:
			say(m, state, "is "+state)
		}
	}
	for i := range old.Members { // in the order of the view
		m := &old.Members[i]
		switch _, gone := before[memberKey{m.ID, m.Role}]; {
		case !gone:
		case m.Role == membership.RoleObserver || m.State == membership.Leaving || left(v, m.ID):
			say(m, "left", "left")
		default:
			say(m, "lost", "failed: no member can reach it")
		}
	}
}

func left(v *membership.View, id ring.ID) bool {
	for _, l := range v.Left {
		if l == id {
			return true
		}
	}
	return false
}

// ringEvent describes a change of the ring: the members that it adds and removes, and the part of the keys that moves.
func ringEvent(now time.Time, old, adopted *ring.Ring) api.TimelineEvent {
	e := api.TimelineEvent{Time: now, Kind: api.RingEvent, Fingerprint: hex(adopted.Fingerprint())}
	var changes []string
	note := func(sign string, a, b *ring.Ring) {
		for i := range a.Len() {
			if id := a.At(i).ID; b.Index(id) < 0 {
				changes = append(changes, sign+string(id))
			}
		}
	}
	note("+", adopted, old)
	note("-", old, adopted)
	// Four digits are enough for a chart and keep the JSON short.
	e.Moved = math.Round(ring.MovedShare(ring.Diff(old, adopted))*1e4) / 1e4
	e.Text = fmt.Sprintf("a ring of %d", adopted.Len())
	if len(changes) > 0 {
		e.Text += ": " + joinFew(changes, " ")
	}
	if old.Len() > 0 && adopted.Len() > 0 {
		e.Text += fmt.Sprintf("; %.1f %% of the keys have a new owner", 100*e.Moved)
	}
	return e
}

// joinFew joins the first names of a list.
func joinFew(names []string, between string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], between), len(names)-most)
	}
	return strings.Join(names, between)
}

// addProgress adds the changes of the handoff's progress at this member.
func (t *timeline) addProgress(now time.Time, p membership.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.progress
	t.progress = p
	say := func(text string, fingerprint uint64) {
		t.Add(api.TimelineEvent{Time: now, Kind: api.HandoffEvent, Text: text, Fingerprint: hex(fingerprint)})
	}
	switch {
	case p.CompleteRing != 0 && p.CompleteRing != old.CompleteRing && t.last != nil && p.CompleteRing == t.last.Ring.Fingerprint():
		say(fmt.Sprintf("this member has all counters of the ring, after %s", now.Sub(t.adopted).Round(time.Millisecond)), p.CompleteRing)
	case p.CompleteRing != 0 && p.CompleteRing != old.CompleteRing:
		say("this member has all counters of the ring", p.CompleteRing)
	case p.CompleteRing == 0 && old.CompleteRing != 0:
		say("ownership revoked: other members may have taken over", 0)
	}
	if p.HandedOff && !old.HandedOff && old.CompleteRing != 0 {
		say("this member has sent all of its counters", 0)
	}
}

// addRules adds that r is in force.
func (t *timeline) addRules(now time.Time, r *config.Rules) {
	text := fmt.Sprintf("rules in force: %d, of %s", len(r.Rules()), joinFew(r.Domains(), ", "))
	t.Add(api.TimelineEvent{Time: now, Kind: api.RulesEvent, Text: text, Fingerprint: hex(r.Hash())})
}

// addLoad adds a failed load. It does not repeat the fault of the load before.
func (t *timeline) addLoad(now time.Time, e source.LoadResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fault := ""
	if e.Err != nil {
		fault = e.Err.Error()
	}
	if fault != "" && fault != t.refused {
		t.Add(api.TimelineEvent{Time: now, Kind: api.RulesEvent, Text: "rules refused: " + fault})
	}
	t.refused = fault
}

// addRoutes adds the changes of hot keys' routes.
func (t *timeline) addRoutes(now time.Time, rs []hotkey.Route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	routes := make(map[[2]string]hotkey.Route, len(rs))
	for i := range rs {
		r := &rs[i]
		at := [2]string{r.Domain, r.Owner}
		if was, known := t.routes[at]; !known || was.Mode != r.Mode || len(was.Subs) != len(r.Subs) {
			t.Add(hotEvent(now, r, routeAction(r)))
		}
		routes[at] = *r
	}
	for at, r := range t.routes {
		if _, still := routes[at]; !still {
			t.Add(hotEvent(now, &r, "no route"))
		}
	}
	t.routes = routes
}

// routeAction describes a route.
func routeAction(r *hotkey.Route) string {
	text := api.HotMode(r.Mode).String()
	var members []string
	for _, s := range r.Subs {
		members = append(members, string(s.Member))
	}
	if len(members) > 0 {
		text += " to " + joinFew(members, ", ")
	}
	if r.Manual {
		text += ", manual"
	}
	return text
}

func hotEvent(now time.Time, r *hotkey.Route, what string) api.TimelineEvent {
	name := r.Name
	if name == "" {
		name = r.Owner
	}
	return api.TimelineEvent{Time: now, Kind: api.HotEvent, Text: fmt.Sprintf("hot key %s of %s: %s", name, r.Domain, what), Member: string(r.Author)}
}
