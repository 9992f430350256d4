package records

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// capOf returns a route of the simplest kind.
func capOf(by ring.ID, owner string, ver int64) hotkey.Route {
	return hotkey.Route{Domain: "d", Name: "k=" + owner, Owner: owner, Mode: hotkey.Cap, Author: by, Version: ver, Limit: 10, Window: int64(time.Second)}
}

func summary(rs []hotkey.Route) (out []string) {
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%s %s %d", r.Owner, r.Author, r.Version))
	}
	return out
}

// network connects the stores of several members. The test controls its clock.
type network struct {
	t      *testing.T
	now    time.Time
	stores []*Store
	live   []membership.Member
}

func newNetwork(t *testing.T, names ...ring.ID) *network {
	c := &network{t: t, now: time.Unix(1, 0)}
	for i, id := range names {
		m := membership.Member{ID: id, BootID: uint64(i) + 11}
		c.live = append(c.live, m)
		c.stores = append(c.stores, New(m.ID, m.BootID, func() int { return len(names) }))
	}
	c.step()
	return c
}

// step calls Step on every store.
func (c *network) step() {
	for i, b := range c.stores {
		b.Step(c.now, append(slices.Clone(c.live[:i]), c.live[i+1:]...))
	}
}

// pass delivers the messages of one store to all others.
func (c *network) pass(from *Store) (msgs [][]byte) {
	msgs = from.queue.take(0, 1<<20)
	for _, msg := range msgs {
		for _, b := range c.stores {
			if b != from {
				if _, err := b.Merge(c.now, msg); err != nil {
					c.t.Error(err)
				}
			}
		}
	}
	return msgs
}

// spread advances the clock by d in steps of a second and delivers all messages at once, except those of muted
// stores.
func (c *network) spread(d time.Duration, muted ...*Store) {
	for end := c.now.Add(d); ; c.now = c.now.Add(time.Second) {
		c.step()
		for _, b := range c.stores {
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

func (c *network) want(what string, want ...string) {
	c.t.Helper()
	for _, b := range c.stores {
		if got := summary(b.effective); !slices.Equal(got, want) {
			c.t.Errorf("%s: %s has %q, want %q", what, b.self, got, want)
		}
	}
}

func TestNewestRouteApplies(t *testing.T) {
	c := newNetwork(t, "a", "b", "c")
	a, b := c.stores[0], c.stores[1]
	foreign, manual, invalid := capOf("b", "k9", 1), capOf("a", "k9", 1), capOf("a", "", 1)
	manual.Manual = true
	a.SetAutomatic([]hotkey.Route{capOf("a", "k2", 5), capOf("a", "k1", 5), foreign, manual, invalid})
	c.spread(time.Second)
	c.want("automatic", "k1 a 5", "k2 a 5")

	b.SetAutomatic([]hotkey.Route{capOf("b", "k1", 6), capOf("b", "k2", 4)})
	c.spread(time.Second)
	c.want("the newest applies", "k1 b 6", "k2 a 5")
	b.SetAutomatic([]hotkey.Route{capOf("b", "k1", 5)})
	c.spread(20 * time.Second)
	c.want("same version: the smaller name applies", "k1 a 5", "k2 a 5")
	b.SetAutomatic([]hotkey.Route{capOf("b", "k1", 6)})
	c.spread(time.Second)
	c.want("newer again", "k1 b 6", "k2 a 5")

	b.SetAutomatic(nil)
	c.spread(0)
	c.want("withdrawn at once", "k2 a 5")
	c.spread(20 * time.Second)
	c.want("the other author repeats its route", "k1 a 5", "k2 a 5")
	a.SetAutomatic(nil)
	c.spread(0)
	c.want("all withdrawn")
	c.spread(20 * time.Second)
	for _, b := range c.stores {
		if len(b.routes) != 0 {
			t.Errorf("%s still has %v", b.self, b.routes)
		}
	}
}

func TestManualRouteTakesPrecedence(t *testing.T) {
	c := newNetwork(t, "a", "b", "c")
	set := func(by int, owner string, mode hotkey.Mode, ver int64) {
		t.Helper()
		r := capOf("", owner, ver)
		if r.Mode = mode; mode == hotkey.Auto {
			r.Limit, r.Window = 0, 0
		}
		if err := c.stores[by].SetManual(c.now, r); err != nil {
			t.Fatal(err)
		}
		c.spread(0)
	}
	c.stores[0].SetAutomatic([]hotkey.Route{capOf("a", "k", 100)})
	set(1, "k", hotkey.Cap, 7)
	c.want("a manual route applies although it is older", "k b 7")
	set(2, "k", hotkey.Cap, 8)
	c.want("the newer manual route", "k c 8")
	c.spread(40 * time.Second)
	c.want("its author repeats it; the older one does not return", "k c 8")
	set(0, "k", hotkey.Auto, 9)
	c.want("withdrawn by a third member", "k a 100")
	c.spread(time.Minute)
	c.want("for good", "k a 100")
	for _, b := range c.stores {
		if len(b.manual) != 0 {
			t.Errorf("%s still repeats %v", b.self, b.manual)
		}
	}
	if err := c.stores[0].SetManual(c.now, capOf("a", "", 1)); err == nil {
		t.Error("accepted an invalid manual route")
	}
}

// A route expires 15 s after its last transmission, and at once when its author leaves.
func TestRoutesExpire(t *testing.T) {
	c := newNetwork(t, "a", "b", "c")
	a := c.stores[0]
	a.SetAutomatic([]hotkey.Route{capOf("a", "k", 5)})
	c.spread(30 * time.Second)
	c.want("repeated", "k a 5")
	last := c.stores[1].routes[routeKey{"d", "k", false}].receivedAt
	c.spread(last.Add(routeTTL).Sub(c.now), a)
	if got := summary(c.stores[1].effective); len(got) != 1 {
		t.Errorf("%v, 15 s after the last transmission", got)
	}
	c.spread(2*time.Second, a)
	if got := summary(c.stores[1].effective); len(got) != 0 {
		t.Errorf("%v, more than 15 s after the last transmission", got)
	}
	c.spread(10 * time.Second)
	c.want("received again", "k a 5")
	c.live, c.stores = c.live[1:], c.stores[1:]
	c.step()
	c.want("removed with its author")
}

// Messages that are late, repeated, or not from their author change nothing.
func TestMergeRefuses(t *testing.T) {
	c := newNetwork(t, "a", "b")
	a, b := c.stores[0], c.stores[1]
	a.SetAutomatic([]hotkey.Route{capOf("a", "k", 5)})
	c.step()
	first := c.pass(a)
	a.SetAutomatic(nil)
	c.step()
	c.pass(a)
	c.step()
	c.want("withdrawn")
	for _, msg := range first {
		if changed, err := b.Merge(c.now, msg); changed || err != nil {
			t.Errorf("%x changed a route: %v", msg, err)
		}
	}
	c.step()
	c.want("an older transmission does not restore it")

	message := func(bootID uint64, r hotkey.Route) []byte {
		return encodeRoute(&routeRecord{origin: origin{bootID: bootID, seq: 99}, route: r})
	}
	long := capOf("a", "k", 6)
	long.Name = string(bytes.Repeat([]byte{'n'}, 257))
	for name, tt := range map[string]struct {
		msg []byte
		bad bool
	}{
		"unknown author": {message(99, capOf("a", "k", 6)), false},
		"own boot ID":    {message(b.bootID, capOf("b", "k", 6)), false},
		"another's name": {message(a.bootID, capOf("b", "k", 6)), true},
		"too long":       {message(a.bootID, long), true},
		"truncated":      {message(a.bootID, capOf("a", "k", 6))[:30], true},
		"empty":          {nil, true},
		"a later kind":   {append(encodeHeader(9, 0, origin{bootID: a.bootID, seq: 99}), "later"...), false},
		"load of NaN":    {encodeLoad(loadRecord{origin{bootID: a.bootID, seq: 99}, math.NaN()}), true},
		"negative load":  {encodeLoad(loadRecord{origin{bootID: a.bootID, seq: 99}, -1}), true},
	} {
		if changed, err := b.Merge(c.now, tt.msg); changed || (err != nil) != tt.bad {
			t.Errorf("%s: changed %v, %v", name, changed, err)
		}
	}
	c.step()
	c.want("after all of these")

	for i := range maxRoutes {
		_, _ = b.Merge(c.now, message(a.bootID, capOf("a", fmt.Sprint(i), 1)))
	}
	if _, err := b.Merge(c.now, message(a.bootID, capOf("a", "more", 1))); err == nil || len(b.routes) > maxRoutes {
		t.Errorf("%d routes are stored, %v", len(b.routes), err)
	}
	b.SetAutomatic([]hotkey.Route{capOf("b", "own", 1)})
	if rs, _ := b.Step(c.now, c.live[:1]); !slices.ContainsFunc(rs, func(r hotkey.Route) bool { return r.Owner == "own" }) {
		t.Error("no room for the member's own route")
	}
}

// The layout never changes.
func TestMessageGolden(t *testing.T) {
	r := capOf("a", "k", 5)
	for want, b := range map[string][]byte{
		"0101" + "0807060504030201" + "1817161514131211" + hex.EncodeToString(hotkey.AppendRoute(nil, &r)): encodeRoute(&routeRecord{origin{bootID: 0x0102030405060708, seq: 0x1112131415161718}, r, true}),
		"0200" + "0807060504030201" + "1817161514131211" + "000000000000f83f": encodeLoad(
			loadRecord{origin{bootID: 0x0102030405060708, seq: 0x1112131415161718}, 1.5}),
	} {
		if got := hex.EncodeToString(b); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func FuzzMerge(f *testing.F) {
	r := capOf("a", "k", 5)
	f.Add(encodeRoute(&routeRecord{origin: origin{bootID: 11, seq: 7}, route: r}))
	f.Add(encodeLoad(loadRecord{origin{bootID: 11, seq: 7}, 1.5}))
	f.Fuzz(func(t *testing.T, msg []byte) {
		b := New("b", 12, func() int { return 2 })
		now, live := time.Unix(1, 0), []membership.Member{{ID: "a", BootID: 11}}
		b.Step(now, live)
		_, _ = b.Merge(now, msg)
		rs, _ := b.Step(now, live)
		for i := range rs {
			if err := rs[i].Validate(); err != nil || rs[i].Author != "a" {
				t.Fatalf("%+v: %v", rs[i], err)
			}
		}
		for id, load := range b.Loads() {
			if !(load >= 0 && load <= maxLoad) {
				t.Fatalf("load %v of %s", load, id)
			}
		}
	})
}

// An idle member announces no load; one that has become idle announces it once.
func TestIdleMemberAnnouncesNoLoad(t *testing.T) {
	b := New("a", 11, func() int { return 2 })
	now, n := time.Unix(1000, 0), 0
	step := func() int {
		b.Step(now, nil)
		now = now.Add(routeInterval)
		was := n
		n = int(b.seq)
		return n - was
	}
	for _, c := range []struct {
		load float64
		want int // transmissions in a minute
	}{{0, 0}, {1000, 4}, {0, 1}, {0, 0}, {10, 4}} {
		b.SetLoad(c.load)
		sent := 0
		for range time.Minute / routeInterval {
			sent += step()
		}
		if sent != c.want {
			t.Errorf("a load of %v was sent %d times in a minute, want %d", c.load, sent, c.want)
		}
	}
}

// Each message is transmitted often enough, no packet exceeds the limit, and a newer message replaces an older one.
func TestQueue(t *testing.T) {
	o := queue{members: func() int { return 20 }} // twice the 4 of up to 9
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
