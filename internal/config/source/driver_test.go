package source

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/keyward/keyward/internal/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTime() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

// rules returns rules with one limit. Each limit is a different version.
func rules(t testing.TB, limit int) *config.Rules {
	t.Helper()
	r, err := config.Load([]config.File{{Name: "test", Content: []byte(yamlOf("domain", limit))}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func yamlOf(domain string, limit int) string {
	return fmt.Sprintf("domain: %s\ndescriptors:\n  - key: k\n    rate_limit: {unit: minute, requests_per_unit: %d}\n", domain, limit)
}

func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		var announced, switched []string
		v := NewVersions(VersionsOptions{
			Self:       "me",
			OnSwitch:   func(r *config.Rules) { switched = append(switched, Hex(r.Hash())) },
			Announce:   func(f, p uint64) { announced = append(announced, Hex(f)+"/"+Hex(p)) },
			Registerer: reg,
		})
		defer v.Close()
		one, two := rules(t, 1), rules(t, 2)
		a, b, none := Hex(one.Hash()), Hex(two.Hash()), Hex(0)
		if v.Current() != nil {
			t.Error("rules before any were read")
		}
		v.Offer(LoadResult{Err: errors.New("bad"), Source: FromFiles})
		<-v.Read()
		if v.Current() != nil || v.Status().Failure != "bad" {
			t.Errorf("after a fault: %+v", v.Status())
		}
		v.Offer(LoadResult{Rules: one, Source: FromFiles, Detail: "/d"})
		if v.Current() != one {
			t.Error("the first rules are not in force")
		}
		v.setMembers([]memberRules{{ID: "me"}, {ID: "a", InForce: one.Hash()}})
		start := time.Now()
		v.Offer(LoadResult{Rules: two, Source: FromXDS, Detail: "host:1"})
		if v.Current() != one {
			t.Error("switched although a member has not read the rules")
		}
		s := v.Status()
		if s.InForce != one.Hash() || s.Prepared != two.Hash() || fmt.Sprint(s.WaitingFor) != "[a]" || !s.Deadline.Equal(start.Add(90*time.Second)) {
			t.Errorf("while it waits: %+v", s)
		}
		expect(t, reg, fmt.Sprintf(`
			# HELP keyward_rules_version_info Versions of the rules on this member, by state: in_force or prepared.
			# TYPE keyward_rules_version_info gauge
			keyward_rules_version_info{state="in_force",version="%s"} 1
			keyward_rules_version_info{state="prepared",version="%s"} 1
			# HELP keyward_rules_waiting_members Live members that have not yet loaded the rules that this member has prepared.
			# TYPE keyward_rules_waiting_members gauge
			keyward_rules_waiting_members 1
		`, a, b), "keyward_rules_version_info", "keyward_rules_waiting_members")

		time.Sleep(90*time.Second - 1) // in the bubble's time
		synctest.Wait()
		if v.Current() != one {
			t.Error("switched too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if v.Current() != two {
			t.Error("did not switch in time")
		}
		expect(t, reg, `
			# HELP keyward_rules_disagreement Live members that use other rules than this one.
			# TYPE keyward_rules_disagreement gauge
			keyward_rules_disagreement 1
			# HELP keyward_config_reloads_total Attempts to load rules, by source (files, xds) and result (success, error).
			# TYPE keyward_config_reloads_total counter
			keyward_config_reloads_total{result="error",source="files"} 1
			keyward_config_reloads_total{result="success",source="files"} 1
			keyward_config_reloads_total{result="success",source="xds"} 1
			# HELP keyward_rules_switches_total Versions that came into force, by reason: first, agreed, or timeout (a member had not loaded it).
			# TYPE keyward_rules_switches_total counter
			keyward_rules_switches_total{reason="agreed"} 0
			keyward_rules_switches_total{reason="first"} 1
			keyward_rules_switches_total{reason="timeout"} 1
		`, "keyward_rules_disagreement", "keyward_config_reloads_total", "keyward_rules_switches_total")

		if want := fmt.Sprint([]string{a + "/" + none, a + "/" + b, b + "/" + none}); fmt.Sprint(announced) != want {
			t.Errorf("announced %v, want %v", announced, want)
		}
		if want := fmt.Sprint([]string{a, b}); fmt.Sprint(switched) != want {
			t.Errorf("switched to %v, want %v", switched, want)
		}
		list := v.Status().Versions
		if len(list) != 2 || list[0].Hash != two.Hash() || list[0].State != InForce || list[0].Reason != "timeout" ||
			list[0].Source != FromXDS || list[0].Detail != "host:1" || !list[0].Loaded.Equal(start) || !list[0].Since.Equal(start.Add(90*time.Second)) ||
			list[1].State != Past || !list[1].Until.Equal(list[0].Since) {
			t.Errorf("list: %+v", list)
		}
	})
}

func expect(t *testing.T, g prometheus.Gatherer, text string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(g, strings.NewReader(text), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(g); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestVersionsCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVersions(VersionsOptions{})
		defer v.Close()
		one, two := rules(t, 1), rules(t, 2)
		v.Offer(LoadResult{Rules: one})
		v.setMembers([]memberRules{{ID: "a", InForce: one.Hash()}})
		v.Offer(LoadResult{Rules: two})
		v.Offer(LoadResult{Rules: rules(t, 1)})
		time.Sleep(time.Hour)
		synctest.Wait()
		if v.Current() != one {
			t.Error("a canceled version came into force")
		}
		if list := v.Status().Versions; len(list) != 2 || list[0].State != Replaced || list[1].State != InForce {
			t.Errorf("list: %+v", list)
		}
		v.Offer(LoadResult{Rules: two}) // and again: another entry, in force once the member has it
		v.setMembers([]memberRules{{ID: "a", InForce: one.Hash(), Prepared: two.Hash()}})
		if v.Current() != two || len(v.Status().Versions) != 3 {
			t.Errorf("after the second time: %+v", v.Status())
		}
	})
}

func TestVersionsClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVersions(VersionsOptions{})
		v.setMembers([]memberRules{{ID: "a", InForce: 1}})
		v.Offer(LoadResult{Rules: rules(t, 1)})
		v.Offer(LoadResult{Rules: rules(t, 2)})
		was := v.Current()
		v.Close()
		time.Sleep(time.Hour)
		if v.Current() != was {
			t.Error("switched after Close")
		}
	})
}

// Three members that exchange gossip by function calls, and whose callbacks call each other: no deadlock, one switch
// each.
func TestVersionsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		said := make([]memberRules, n)
		members := make([]*Versions, n)
		tell := func() {
			for _, v := range members {
				v.setMembers(said)
			}
		}
		for i := range members {
			members[i] = NewVersions(VersionsOptions{Self: fmt.Sprint(i), Announce: func(f, p uint64) {
				said[i] = memberRules{fmt.Sprint(i), f, p}
				tell()
			}})
			defer members[i].Close()
		}
		for limit := 1; limit <= 4; limit++ {
			for i, v := range members {
				v.Offer(LoadResult{Rules: rules(t, limit)})
				time.Sleep(7 * time.Second)
				for j, w := range members {
					want := limit
					if i < n-1 && limit > 1 {
						want = limit - 1 // a member still lacks it
					}
					if (limit > 1 || j <= i) && w.Current().Hash() != rules(t, want).Hash() {
						t.Errorf("limit %d loaded by %d: member %d uses other rules than %d", limit, i+1, j, want)
					}
				}
			}
		}
	})
}

// A callback that causes the next change returns before the next callback starts.
func TestVersionsCallbacksInOrder(t *testing.T) {
	var said []string
	var v *Versions
	one, two := rules(t, 1), rules(t, 2)
	v = NewVersions(VersionsOptions{
		OnSwitch: func(r *config.Rules) {
			said = append(said, "switch "+Hex(r.Hash()))
			if r == one {
				v.Offer(LoadResult{Rules: two})
			}
			said = append(said, "done "+Hex(r.Hash()))
		},
		Announce: func(f, _ uint64) { said = append(said, "announce "+Hex(f)) },
	})
	defer v.Close()
	v.Offer(LoadResult{Rules: one})
	a, b := Hex(one.Hash()), Hex(two.Hash())
	want := []string{"switch " + a, "done " + a, "announce " + a, "switch " + b, "done " + b, "announce " + b}
	if fmt.Sprint(said) != fmt.Sprint(want) {
		t.Errorf("callbacks %v, want %v", said, want)
	}
}
