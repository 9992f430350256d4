package cluster

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// capOf is a route of the simplest kind.
func capOf(by ring.ID, owner string, ver int64) hotkey.Route {
	return hotkey.Route{Domain: "d", Name: "k=" + owner, Owner: owner, Mode: hotkey.Cap, Author: by, Version: ver, Limit: 10, Window: int64(time.Second)}
}

func shown(rs []hotkey.Route) (out []string) {
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%s %s %d", r.Owner, r.Author, r.Version))
	}
	return out
}

// forum are boards that hear each other as far as a test wants them to. The clock is the test's.
type forum struct {
	t      *testing.T
	now    time.Time
	boards []*gossipState
	live   []membership.Member
}

func newForum(t *testing.T, names ...ring.ID) *forum {
	c := &forum{t: t, now: time.Unix(1, 0)}
	for i, id := range names {
		m := membership.Member{ID: id, BootID: uint64(i) + 11}
		c.live = append(c.live, m)
		c.boards = append(c.boards, newGossipState(&m, func() int { return len(names) }))
	}
	c.step()
	return c
}

// step has every live board look at the clock.
func (c *forum) step() {
	for i, b := range c.boards {
		b.step(c.now, append(slices.Clone(c.live[:i]), c.live[i+1:]...))
	}
}

// pass has the messages of one board heard by all others.
func (c *forum) pass(from *gossipState) (msgs [][]byte) {
	msgs = from.queue.take(0, 1<<20)
	for _, msg := range msgs {
		for _, b := range c.boards {
			if b != from {
				if _, err := b.merge(c.now, msg); err != nil {
					c.t.Error(err)
				}
			}
		}
	}
	return msgs
}

// spread lets so much time pass, in steps of a second, with everybody heard at once but those that are muted.
func (c *forum) spread(d time.Duration, muted ...*gossipState) {
	for end := c.now.Add(d); ; c.now = c.now.Add(time.Second) {
		c.step()
		for _, b := range c.boards {
			if slices.Contains(muted, b) {
				clear(b.queue.items)
			} else {
				c.pass(b)
			}
		}
		c.step()
		if !c.now.Before(end) {
			return
		}
	}
}

func (c *forum) want(what string, want ...string) {
	c.t.Helper()
	for _, b := range c.boards {
		if got := shown(b.reported); !slices.Equal(got, want) {
			c.t.Errorf("%s: %s knows %q, want %q", what, b.self, got, want)
		}
	}
}

func TestRoutesCount(t *testing.T) {
	c := newForum(t, "a", "b", "c")
	a, b := c.boards[0], c.boards[1]
	foreign, manual, invalid := capOf("b", "k9", 1), capOf("a", "k9", 1), capOf("a", "", 1)
	manual.Manual = true
	a.setAutomatic([]hotkey.Route{capOf("a", "k2", 5), capOf("a", "k1", 5), foreign, manual, invalid})
	c.spread(time.Second)
	c.want("automatic", "k1 a 5", "k2 a 5")

	b.setAutomatic([]hotkey.Route{capOf("b", "k1", 6), capOf("b", "k2", 4)})
	c.spread(time.Second)
	c.want("the newest counts", "k1 b 6", "k2 a 5")
	b.setAutomatic([]hotkey.Route{capOf("b", "k1", 5)})
	c.spread(20 * time.Second)
	c.want("of two as new, that of the smaller name", "k1 a 5", "k2 a 5")
	b.setAutomatic([]hotkey.Route{capOf("b", "k1", 6)})
	c.spread(time.Second)
	c.want("it becomes newer", "k1 b 6", "k2 a 5")

	b.setAutomatic(nil)
	c.spread(0)
	c.want("taken back at once", "k2 a 5")
	c.spread(20 * time.Second)
	c.want("and who still means it is heard again", "k1 a 5", "k2 a 5")
	a.setAutomatic(nil)
	c.spread(0)
	c.want("nobody means anything")
	c.spread(20 * time.Second)
	for _, b := range c.boards {
		if len(b.routes) != 0 {
			t.Errorf("%s keeps %v", b.self, b.routes)
		}
	}
}

func TestOrdersCount(t *testing.T) {
	c := newForum(t, "a", "b", "c")
	order := func(by int, owner string, mode hotkey.Mode, ver int64) {
		t.Helper()
		r := capOf("", owner, ver)
		if r.Mode = mode; mode == hotkey.Auto {
			r.Limit, r.Window = 0, 0
		}
		if err := c.boards[by].setManual(c.now, r); err != nil {
			t.Fatal(err)
		}
		c.spread(0)
	}
	c.boards[0].setAutomatic([]hotkey.Route{capOf("a", "k", 100)})
	order(1, "k", hotkey.Cap, 7)
	c.want("by hand counts, although it is older", "k b 7")
	order(2, "k", hotkey.Cap, 8)
	c.want("the newer order", "k c 8")
	c.spread(40 * time.Second)
	c.want("is held up by its author, and the older one never comes back", "k c 8")
	order(0, "k", hotkey.Auto, 9)
	c.want("cleared by a third one", "k a 100")
	c.spread(time.Minute)
	c.want("for good", "k a 100")
	for _, b := range c.boards {
		if len(b.manual) != 0 {
			t.Errorf("%s still orders %v", b.self, b.manual)
		}
	}
	if err := c.boards[0].setManual(c.now, capOf("a", "", 1)); err == nil {
		t.Error("an order of nothing")
	}
}

// A route is forgotten 15 s after it was last heard, and with its author at once.
func TestRoutesForgotten(t *testing.T) {
	c := newForum(t, "a", "b", "c")
	a := c.boards[0]
	a.setAutomatic([]hotkey.Route{capOf("a", "k", 5)})
	c.spread(30 * time.Second)
	c.want("repeated", "k a 5")
	last := c.boards[1].routes[routeKey{"d", "k", false}].receivedAt
	c.spread(last.Add(routeTTL).Sub(c.now), a)
	if got := shown(c.boards[1].reported); len(got) != 1 {
		t.Errorf("%v after a silence of 15 s", got)
	}
	c.spread(2*time.Second, a)
	if got := shown(c.boards[1].reported); len(got) != 0 {
		t.Errorf("%v after more than 15 s", got)
	}
	c.spread(10 * time.Second)
	c.want("heard again", "k a 5")
	c.live, c.boards = c.live[1:], c.boards[1:]
	c.step()
	c.want("gone with its author")
}

// Messages that are late, doubled, another's or a stranger's change nothing.
func TestPostsRefused(t *testing.T) {
	c := newForum(t, "a", "b")
	a, b := c.boards[0], c.boards[1]
	a.setAutomatic([]hotkey.Route{capOf("a", "k", 5)})
	c.step()
	first := c.pass(a)
	a.setAutomatic(nil)
	c.step()
	c.pass(a)
	c.step()
	c.want("taken back")
	for _, msg := range first {
		if news, err := b.merge(c.now, msg); news || err != nil {
			t.Errorf("%x is news: %v", msg, err)
		}
	}
	c.step()
	c.want("an overtaken sending does not bring it back")

	post := func(inst uint64, r hotkey.Route) []byte {
		return appendRoute(nil, &routeRecord{origin: origin{bootID: inst, seq: 99}, route: r})
	}
	long := capOf("a", "k", 6)
	long.Name = string(bytes.Repeat([]byte{'n'}, hotkey.MaxText+1))
	for name, tt := range map[string]struct {
		msg []byte
		bad bool
	}{
		"of a stranger":      {post(99, capOf("a", "k", 6)), false},
		"of itself":          {post(b.bootID, capOf("b", "k", 6)), false},
		"in another's name":  {post(a.bootID, capOf("b", "k", 6)), true},
		"too long":           {post(a.bootID, long), true},
		"cut off":            {post(a.bootID, capOf("a", "k", 6))[:30], true},
		"empty":              {nil, true},
		"a later kind":       {append(appendHead(nil, 9, 0, origin{bootID: a.bootID, seq: 99}), "later"...), false},
		"a load of nonsense": {appendLoad(nil, loadRecord{origin{bootID: a.bootID, seq: 99}, math.NaN()}), true},
		"a load below 0":     {appendLoad(nil, loadRecord{origin{bootID: a.bootID, seq: 99}, -1}), true},
	} {
		if news, err := b.merge(c.now, tt.msg); news || (err != nil) != tt.bad {
			t.Errorf("%s: news %v, %v", name, news, err)
		}
	}
	c.step()
	c.want("after all that")

	for i := range maxRoutes {
		_, _ = b.merge(c.now, post(a.bootID, capOf("a", fmt.Sprint(i), 1)))
	}
	if _, err := b.merge(c.now, post(a.bootID, capOf("a", "more", 1))); err == nil || len(b.routes) > maxRoutes {
		t.Errorf("%d routes are kept, %v", len(b.routes), err)
	}
	b.setAutomatic([]hotkey.Route{capOf("b", "own", 1)})
	if rs, _ := b.step(c.now, c.live[:1]); !slices.ContainsFunc(rs, func(r hotkey.Route) bool { return r.Owner == "own" }) {
		t.Error("others leave no room for its own")
	}
}

// The layout never changes.
func TestPostGolden(t *testing.T) {
	r := capOf("a", "k", 5)
	for want, b := range map[string][]byte{
		"0101" + "0807060504030201" + "1817161514131211" + hex.EncodeToString(hotkey.AppendRoute(nil, &r)): appendRoute(nil, &routeRecord{origin{bootID: 0x0102030405060708, seq: 0x1112131415161718}, r, true}),
		"0200" + "0807060504030201" + "1817161514131211" + "000000000000f83f": appendLoad(nil,
			loadRecord{origin{bootID: 0x0102030405060708, seq: 0x1112131415161718}, 1.5}),
	} {
		if got := hex.EncodeToString(b); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func FuzzPost(f *testing.F) {
	r := capOf("a", "k", 5)
	f.Add(appendRoute(nil, &routeRecord{origin: origin{bootID: 11, seq: 7}, route: r}))
	f.Add(appendLoad(nil, loadRecord{origin{bootID: 11, seq: 7}, 1.5}))
	f.Fuzz(func(t *testing.T, msg []byte) {
		b := newGossipState(&membership.Member{ID: "b", BootID: 12}, func() int { return 2 })
		now, live := time.Unix(1, 0), []membership.Member{{ID: "a", BootID: 11}}
		b.step(now, live)
		_, _ = b.merge(now, msg)
		rs, _ := b.step(now, live)
		for i := range rs {
			if err := rs[i].Validate(); err != nil || rs[i].Author != "a" {
				t.Fatalf("%+v: %v", rs[i], err)
			}
		}
		for id, load := range b.memberLoads() {
			if !(load >= 0 && load <= maxLoad) {
				t.Fatalf("load %v of %s", load, id)
			}
		}
	})
}

// Who is idle says nothing, and who has become so says it once.
func TestIdleMembersAreSilent(t *testing.T) {
	b := newGossipState(&membership.Member{ID: "a", BootID: 11}, func() int { return 2 })
	now, n := time.Unix(1000, 0), 0
	look := func() int {
		b.step(now, nil)
		now = now.Add(routeInterval)
		was := n
		n = int(b.seq)
		return n - was
	}
	for _, c := range []struct {
		load float64
		want int // sendings in a minute
	}{{0, 0}, {1000, 4}, {0, 1}, {0, 0}, {10, 4}} {
		b.setLoad(c.load)
		sent := 0
		for range time.Minute / routeInterval {
			sent += look()
		}
		if sent != c.want {
			t.Errorf("a load of %v is sent %d times in a minute, want %d", c.load, sent, c.want)
		}
	}
}

// With real gossip: everyone hears, the newest order counts, and who leaves takes what it said with it.
func TestRoutesTravel(t *testing.T) {
	t.Parallel()
	mu := make(chan struct{}, 1)
	heard := map[string][]string{}
	all := three(t, func(o *Options) {
		name := o.Node
		o.OnRoutes = func(rs []hotkey.Route) {
			mu <- struct{}{}
			heard[name] = shown(rs)
			<-mu
		}
	})
	know := func(cs []*Cluster, want ...string) func() bool {
		return func() bool {
			mu <- struct{}{}
			defer func() { <-mu }()
			for _, c := range cs {
				if !slices.Equal(heard[string(c.View().Self)], want) {
					return false
				}
			}
			return true
		}
	}
	all[2].SetRoutes([]hotkey.Route{capOf("c", "k", 5), capOf("c", "k2", 5)})
	eventually(t, "all know c's routes", know(all, "k c 5", "k2 c 5"))
	if err := all[1].SetManualRoute(capOf("b", "k", 6)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all know b's order", know(all, "k b 6", "k2 c 5"))
	for _, c := range all {
		if got := testutil.ToFloat64(c.metrics.routes); got != 2 {
			t.Errorf("keyward_hot_routes %v", got)
		}
	}
	all[2].SetLoad(3000)
	all[1].SetLoad(500)
	eventually(t, "b's load is known", func() bool { return all[0].Loads()["b"] == 500 })
	all[1].Leave(t.Context())
	eventually(t, "b's order has left with it", know([]*Cluster{all[0], all[2]}, "k c 5", "k2 c 5"))
	all[2].SetRoutes([]hotkey.Route{capOf("c", "k2", 5)})
	eventually(t, "one is withdrawn", know([]*Cluster{all[0], all[2]}, "k2 c 5"))
	eventually(t, "c's load is known", func() bool { return all[0].Loads()["c"] == 3000 })
	if _, ok := all[0].Loads()["b"]; ok {
		t.Error("the load of a member that has left")
	}
}

// Each message is sent as often as it takes, no packet is overfull, and a newer message takes an older one's place.
func TestOutbox(t *testing.T) {
	o := broadcastQueue{members: func() int { return 20 }} // twice the 4 of up to 9
	sent := map[string]int{}
	for i := range 40 {
		if i < 10 {
			o.add(i, fmt.Appendf(nil, "m%d", i))
			o.add("same", fmt.Appendf(nil, "s%d", i))
		}
		bytes := 0
		for _, m := range o.take(3, 20) {
			bytes += 3 + len(m)
			sent[string(m)]++
		}
		if bytes > 20 {
			t.Errorf("a packet of %d bytes", bytes)
		}
	}
	for i := range 10 {
		if n := sent[fmt.Sprint("m", i)]; n != 8 {
			t.Errorf("message %d was sent %d times, want 8", i, n)
		}
	}
	if sent["s9"] != 8 || sent["s0"] > 1 || len(o.items) != 0 || o.take(0, 100) != nil {
		t.Errorf("%v, %d left", sent, len(o.items))
	}
	o.add("large", make([]byte, 30))
	if got := o.take(3, 32); got != nil {
		t.Errorf("%d bytes do not fit", len(got[0]))
	}
}
