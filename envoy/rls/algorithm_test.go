package rls

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// counting is a Decider that decides with package limit alone, as the owner of every key, at a time set by the test.
type counting struct {
	states map[owner.Key]*limit.State
	now    time.Time
}

func (c *counting) Decide(_ policy.Deadline, _ bool, qs []owner.Request, as []owner.Result) {
	for i := range qs {
		q := &qs[i]
		s := c.states[q.Key]
		if s == nil {
			s = &limit.State{}
			c.states[q.Key] = s
		}
		as[i].Decision = q.Rule.Take(s, c.now.UnixNano(), 1, q.Hits)
	}
}

// rule returns rules with one rule of ten hits per window.
func rule(unit, extension string) string {
	return fmt.Sprintf("{domain: d, descriptors: [{key: k, rate_limit: {unit: %s, requests_per_unit: 10}, metadata: {keyward: {%s}}}]}", unit, extension)
}

func newCounting(t *testing.T, yaml string) (*rig, *counting) {
	t.Helper()
	c := &counting{states: map[owner.Key]*limit.State{}, now: clock}
	return newRig(t, yaml, func(o *Options, sw *Switches) { o.Decider, sw.Headers = c, true }), c
}

// TestAlgorithms checks the responses of each algorithm, while clients spend and while they wait.
func TestAlgorithms(t *testing.T) {
	type step struct {
		wait time.Duration
		hits uint64
		want string // overall code, limit header; remaining; reset
	}
	for _, tt := range []struct {
		unit, extension string
		steps           []step
	}{
		{"minute", "", []step{{0, 4, "OK 10; 6; 58"}, {0, 6, "OK 10; 0; 58"}, {0, 1, "OVER 10; 0; 58"}, {58 * time.Second, 1, "OK 10; 9; 60"}}},
		{"minute", "window: 10s", []step{{0, 4, "OK 10, 10;w=10; 6; 8"}, {0, 7, "OVER 10, 10;w=10; 0; 8"}, {8 * time.Second, 1, "OK 10, 10;w=10; 9; 10"}}},
		{"second", "window: 60s", []step{{0, 4, "OK 10, 10;w=60; 6; 58"}}},
		{"hour", "window: 60s", []step{{0, 4, "OK 10; 6; 58"}}}, // a minute is a unit
		{"second", "window: 500ms", []step{{0, 11, "OVER 10; 0; 1"}, {500 * time.Millisecond, 1, "OK 10; 9; 1"}}},
		{"minute", "algorithm: token_bucket", []step{
			{0, 10, "OK 10; 0; 60"}, {0, 1, "OVER 10; 0; 6"}, {6 * time.Second, 1, "OK 10; 0; 60"}, {time.Minute, 1, "OK 10; 9; 6"},
		}},
		{"minute", "algorithm: leaky_bucket, window: 20s, burst: 20", []step{
			{0, 11, "OK 10, 10;w=20;burst=20; 9; 22"}, {0, 10, "OVER 10, 10;w=20;burst=20; 0; 4"},
		}},
		{"minute", "algorithm: token_bucket, burst: 5", []step{{0, 5, "OK 10, 10;w=60;burst=5; 0; 30"}, {0, 1, "OVER 10, 10;w=60;burst=5; 0; 6"}}},
		{"minute", "algorithm: sliding_window, window: 20s", []step{ // the clock is 2 s into a window
			{0, 10, "OK 10, 10;w=20; 0; 18"}, {18 * time.Second, 1, "OVER 10, 10;w=20; 0; 4"}, {10 * time.Second, 1, "OK 10, 10;w=20; 3; 10"},
		}},
		{"minute", "algorithm: sliding_log", []step{
			{0, 10, "OK 10; 0; 60"}, {30 * time.Second, 1, "OVER 10; 0; 30"}, {30 * time.Second, 1, "OK 10; 8; 30"}, // what was over counts, too
		}},
	} {
		yaml := rule(tt.unit, tt.extension)
		byLimit, c := newCounting(t, yaml)
		byOwner := newRig(t, yaml, func(_ *Options, sw *Switches) { sw.Headers = true })
		for i, s := range tt.steps {
			c.now = c.now.Add(s.wait)
			byOwner.lone.advance(s.wait)
			for name, r := range map[string]*rig{"limit": byLimit, "owner": byOwner} {
				resp := r.ask(t, request("d", addend(descriptor("k", "v"), s.hits)))
				code := "OK "
				if resp.OverallCode != 1 {
					code = "OVER "
				}
				var values []string
				for _, h := range resp.ResponseHeadersToAdd {
					values = append(values, h.Value)
				}
				if got := code + strings.Join(values, "; "); got != s.want {
					t.Errorf("%s: %s {%s}, step %d: %s, want %s", name, tt.unit, tt.extension, i, got, s.want)
				}
				st := resp.Statuses[0]
				if reset := fmt.Sprint(st.DurationUntilReset.GetSeconds()); reset != values[2] {
					t.Errorf("%s: %s {%s}, step %d: reset %s in the status, %s in the header", name, tt.unit, tt.extension, i, reset, values[2])
				}
			}
		}
	}
}

// TestWindowInResponse checks that the unit and its multiplier, which Envoy copies into headers, describe the window.
func TestWindowInResponse(t *testing.T) {
	for _, tt := range []struct{ unit, window, want string }{
		{"minute", "60s", "MINUTE nil"},
		{"minute", "10s", "SECOND 10"},
		{"second", "600s", "SECOND 600"},
		{"hour", "600s", "MINUTE 10"},
		{"week", "336h", "WEEK 2"},
		{"second", "1500ms", "UNKNOWN nil"},
	} {
		r, _ := newCounting(t, rule(tt.unit, "window: "+tt.window))
		l := r.ask(t, request("d", descriptor("k", "v"))).Statuses[0].CurrentLimit
		multiplier := "nil"
		if l.UnitMultiplier != nil {
			multiplier = fmt.Sprint(l.UnitMultiplier.Value)
		}
		if got := l.Unit.String() + " " + multiplier; got != tt.want {
			t.Errorf("%s of a rule by the %s: %s, want %s", tt.window, tt.unit, got, tt.want)
		}
	}
}

// TestBucketStatistics checks that near and over are relative to the size of a bucket, not to its refill.
func TestBucketStatistics(t *testing.T) {
	r, c := newCounting(t, rule("minute", "algorithm: token_bucket, burst: 20"))
	for _, step := range []struct {
		wait time.Duration
		hits uint64
		want [4]uint64 // total, over, near, within, since the last step
	}{
		{0, 15, [4]uint64{15, 0, 0, 15}},
		{0, 3, [4]uint64{3, 0, 2, 3}},
		{0, 5, [4]uint64{5, 3, 2, 0}},                   // crosses the depth, and is charged
		{0, 4, [4]uint64{4, 4, 0, 0}},                   // charges nothing
		{24 * time.Second, 1, [4]uint64{1, 0, 1, 1}},    // four have flown out: at 20 of 20
		{10 * time.Minute, 16, [4]uint64{16, 0, 0, 16}}, // empty again
	} {
		c.now = c.now.Add(step.wait)
		old := r.counts("d.k")
		r.ask(t, request("d", addend(descriptor("k", "v"), step.hits)))
		now := r.counts("d.k")
		for i, want := range step.want {
			if got := now[i] - old[i]; got != want {
				t.Errorf("after %v, %d hits: statistic %d rose by %d, want %d", step.wait, step.hits, i, got, want)
			}
		}
	}
}

// TestExtensionInRequest checks that requests carry the values of metadata.keyward, also with an override.
func TestExtensionInRequest(t *testing.T) {
	var asked []owner.Request
	r := newRig(t, rule("minute", "algorithm: leaky_bucket, burst: 30, degraded: fail_open, local_cap: 7, durability: strict"))
	r.lone.after = func(qs []owner.Request, _ []owner.Result) { asked = append(asked, qs...) }
	r.ask(t, request("d", descriptor("k", "v"), override(descriptor("k", "v"), 20, 2), override(descriptor("x", "v"), 20, 2)))
	want := limit.Rule{Window: time.Minute, Limit: 10, Burst: 30, Algorithm: limit.LeakyBucket}
	if q := asked[0]; q.Rule != want || q.Degraded != policy.FailOpen || q.LocalCap != 7 || !q.Strict {
		t.Errorf("the rule's: %+v", q)
	}
	want.Limit, want.Burst = 20, 60
	if q := asked[1]; q.Rule != want || q.Degraded != policy.FailOpen || q.LocalCap != 7 || !q.Strict || q.Key != asked[0].Key {
		t.Errorf("an override of it: %+v", q)
	}
	if q := asked[2]; q.Rule != (limit.Rule{Window: time.Minute, Limit: 20}) || q.Degraded != 0 || q.LocalCap != 0 || q.Strict {
		t.Errorf("an override without a rule: %+v", q)
	}
}

// TestMechanismInRequest checks that requests carry the mechanism and the lease terms of a rule, and responses do not.
func TestMechanismInRequest(t *testing.T) {
	var asked []owner.Request
	r := newRig(t, rule("minute", "mechanism: lease, ttl: 3s, weight: 2, hot_factor: 7"), func(_ *Options, sw *Switches) { sw.DynamicMetadata = true })
	r.lone.after = func(qs []owner.Request, _ []owner.Result) { asked = append(asked, qs...) }
	resp := r.ask(t, request("d", descriptor("k", "v"), descriptor("k", "w"), override(descriptor("k", "v"), 20, 2), override(descriptor("x", "v"), 20, 2)))
	for i, q := range asked[:3] {
		if q.Mechanism != policy.ByLease || q.HotFactor != 7 || q.LeaseTerms != asked[0].LeaseTerms || *q.LeaseTerms != (lease.Terms{TTL: 3 * time.Second, Weight: 2}) {
			t.Errorf("request %d: %+v, %+v", i, q, q.LeaseTerms)
		}
	}
	if q := asked[3]; q.Mechanism != policy.ByOwner || q.HotFactor != 0 || q.LeaseTerms != nil {
		t.Errorf("an override without a rule: %+v", q)
	}
	if text := resp.String(); strings.Contains(text, "mechanism") || strings.Contains(text, "keyward") {
		t.Errorf("response: %s", text)
	}

	asked = nil
	r.SetRules(load(t, rule("minute", "mechanism: approximate, epsilon: 50%")), Switches{})
	r.ask(t, request("d", descriptor("k", "v"), override(descriptor("k", "v"), 9, 2)))
	if q := asked[0]; q.Mechanism != policy.Approximate || q.LeaseTerms.Slack != 5 {
		t.Errorf("approximate: %+v", q)
	}
	if q := asked[1]; q.Mechanism != policy.ByOwner {
		t.Errorf("a lower limit than the rule's: %+v", q)
	}
}

// TestExcessHasRetryAfter checks that every denial has a time to wait.
func TestExcessHasRetryAfter(t *testing.T) {
	r := newRig(t, basic)
	resp := r.ask(t, request("basic", descriptor("key1", strings.Repeat("x", 64<<10+1))))
	if len(resp.Statuses) != 1 || resp.Statuses[0].DurationUntilReset.GetSeconds() != 1 {
		t.Errorf("%v", resp)
	}
}
