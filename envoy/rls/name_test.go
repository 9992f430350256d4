package rls

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/owner"
)

// book records the names that it receives.
type book struct {
	mu    sync.Mutex
	lines []string
	keys  []owner.Key
	knobs []*lease.Terms
}

func (b *book) Name(k owner.Key, name owner.KeyName, knobs *lease.Terms) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys, b.knobs = append(b.keys, k), append(b.knobs, knobs)
	b.lines = append(b.lines, fmt.Sprintf("%s: %s @ %s", name.Domain, name.Name, name.Owner))
}

const named = `
domain: d
descriptors:
  - key: tenant
    descriptors:
      - key: path
        value: "/a/*"
        share_threshold: true
        rate_limit: {unit: day, requests_per_unit: 100}
        metadata: {keyward: {shard_by: [path, tenant], weight: 3}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: fix, value: v, rate_limit: {unit: day, requests_per_unit: 100}}
`

// heat marks every result as hot.
func heat(_ []owner.Request, as []owner.Result) {
	for i := range as {
		as[i].Hot = true
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("é", 150)
	for _, row := range []struct {
		entries []string
		want    string
	}{
		{[]string{"tenant", "t", "path", "/a/b"}, "d: tenant=t,path=/a/* @ /a/*|t"},
		{[]string{"user", "u=1,2"}, "d: user=u=1,2 @ u=1,2"},
		{[]string{"user", ""}, "d: user= @ "},
		{[]string{"fix", "v"}, "d: fix=v @ d|fix=v"},
		{[]string{"user", long}, "d: user=" + long[:250] + " @ "}, // 300 bytes: cut between runes, and no route could match it
	} {
		b := &book{}
		r := newRig(t, named, func(o *Options, _ *Switches) { o.Name = b.Name })
		var asked []owner.Request
		r.lone.after = func(qs []owner.Request, as []owner.Result) { asked = append(asked, qs...); heat(qs, as) }
		req := request("d", descriptor(row.entries...))
		for range 5 {
			r.ask(t, req)
		}
		if !slices.Equal(b.lines, []string{row.want}) {
			t.Errorf("%q: names %q, want %q once", row.entries, b.lines, row.want)
			continue
		}
		if b.keys[0] != asked[0].Key || b.knobs[0] != asked[0].LeaseTerms {
			t.Errorf("%q: another key, or other knobs, than asked", row.entries)
		}
		if _, place, _ := strings.Cut(b.lines[0], " @ "); place != "" && xxhash.Sum64String(place) != asked[0].RingPos {
			t.Errorf("%q: the owner string is not where it was asked", row.entries)
		}
	}
}

// TestColdKeysHaveNoNames checks that values of clients are not reported unless a key is hot.
func TestColdKeysHaveNoNames(t *testing.T) {
	b := &book{}
	r := newRig(t, named, func(o *Options, _ *Switches) { o.Name = b.Name })
	r.ask(t, request("d", descriptor("user", "u"), descriptor("nothing", "x")))
	r.lone.after = heat
	r.ask(t, request(strings.Repeat("d", maxName+1), descriptor("user", "u")))
	if len(b.lines) > 0 {
		t.Errorf("names %q", b.lines)
	}
	r = newRig(t, named)
	r.lone.after = heat
	r.ask(t, request("d", descriptor("user", "u"))) // no Name function
}

// TestNamingsDue checks how often a key is reported, alone and when two keys share a cell.
func TestNamingsDue(t *testing.T) {
	var n nameTimes
	a, b := owner.Key{5, 1 << 32}, owner.Key{5 + 1024, 2 << 32}
	begin := time.UnixMilli(1<<32 - 500) // the time wraps on the way
	for _, step := range []struct {
		ms   int
		key  owner.Key
		want bool
	}{
		{0, a, true}, {1, a, false}, {999, a, false}, {1000, a, true}, {1050, b, false}, {1100, b, true}, {1150, a, false}, {1200, a, true},
		{2199, a, false}, {2200, a, true}, {-5000, a, true},
	} {
		if got := n.due(step.key, begin.Add(time.Duration(step.ms)*time.Millisecond)); got != step.want {
			t.Errorf("at %d ms, key %d: %v", step.ms, step.key[1]>>32, got)
		}
	}
}
