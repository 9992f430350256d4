package source

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Events in these tables are "load V", "A=F/P B=F/P" (the versions that members have in force and prepared, 0 for none)
// and "none" (no other members), each at a second. The state after an event is "in force/prepared reason".
func TestAgreement(t *testing.T) {
	type row struct {
		at    int64
		event string
		want  string
	}
	tests := []struct {
		name string
		rows []row
	}{
		{"alone", []row{
			{0, "load 1", "1/0 first"}, {1, "load 1", "1/0"}, {2, "load 2", "2/0 agreed"},
		}},
		{"the first rules wait for no member", []row{
			{0, "A=7/0 B=7/8", "0/0"}, {1, "load 1", "1/0 first"},
		}},
		{"members load seconds apart", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0 B=1/0", "1/0"},
			{10, "load 2", "1/2"}, {12, "A=1/2 B=1/0", "1/2"}, {15, "A=1/2 B=1/2", "2/0 agreed"},
		}},
		{"last to load switches at once", []row{
			{0, "load 1", "1/0 first"}, {9, "A=1/2 B=1/2", "1/0"}, {10, "load 2", "2/0 agreed"},
		}},
		{"others that have switched already have it", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0 B=1/0", "1/0"}, {10, "load 2", "1/2"}, {11, "A=2/0 B=1/2", "2/0 agreed"},
		}},
		{"others that are one further on do not", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"}, {10, "load 2", "1/2"}, {11, "A=1/3", "1/2"},
			{12, "load 3", "3/0 agreed"},
		}},
		{"one never loads", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0 B=1/0", "1/0"},
			{10, "load 2", "1/2"}, {11, "A=1/2 B=1/0", "1/2"}, {99, "tick", "1/2"}, {100, "tick", "2/0 timeout"},
		}},
		{"one that has no rules is not waited for", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0 B=0/0", "1/0"}, {10, "load 2", "1/2"}, {11, "A=1/2 B=0/0", "2/0 agreed"},
		}},
		{"the one that lacks it leaves", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"}, {10, "load 2", "1/2"}, {20, "none", "2/0 agreed"},
		}},
		{"one joins with the old rules while others wait", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"}, {10, "load 2", "1/2"},
			{20, "A=1/2 B=1/0", "1/2"}, {21, "A=2/0 B=1/2", "2/0 agreed"},
		}},
		{"newest load replaces", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"}, {10, "load 2", "1/2"}, {20, "load 3", "1/3"},
			{21, "A=1/2", "1/3"}, {22, "A=1/3", "3/0 agreed"},
		}},
		{"a replacement waits its own time", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"}, {10, "load 2", "1/2"}, {60, "load 3", "1/3"},
			{100, "tick", "1/3"}, {149, "tick", "1/3"}, {150, "tick", "3/0 timeout"},
		}},
		{"but not for ever", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"},
			{10, "load 2", "1/2"}, {90, "load 3", "1/3"}, {170, "load 4", "1/4"}, {250, "load 5", "1/5"},
			{279, "tick", "1/5"}, {280, "tick", "5/0 timeout"}, {290, "load 6", "5/6"}, {379, "tick", "5/6"}, {380, "tick", "6/0 timeout"},
		}},
		{"back to what is in force cancels", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"}, {10, "load 2", "1/2"}, {20, "load 1", "1/0"},
			{21, "A=1/2", "1/0"}, {200, "tick", "1/0"},
		}},
		{"flapping", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"}, {10, "load 2", "1/2"}, {11, "load 1", "1/0"},
			{12, "load 2", "1/2"}, {13, "load 2", "1/2"}, {101, "tick", "1/2"}, {102, "tick", "2/0 timeout"},
		}},
		{"back after a switch that others did not make", []row{
			{0, "load 1", "1/0 first"}, {0, "A=1/0", "1/0"}, {10, "load 2", "1/2"}, {100, "tick", "2/0 timeout"},
			{110, "load 1", "1/0 agreed"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := agreement{wait: 90}
			for _, r := range tt.rows {
				before := a
				e := play(&a, r.at, r.event)
				got := strings.TrimSpace(fmt.Sprintf("%d/%d %s", a.inForce, a.prepared, e.switched))
				if got != r.want {
					t.Fatalf("%d s, %s: %s, want %s", r.at, r.event, got, r.want)
				}
				if changed := before.inForce != a.inForce || before.prepared != a.prepared; changed != e.announce {
					t.Errorf("%d s, %s: announce %v, changed %v", r.at, r.event, e.announce, changed)
				}
			}
		})
	}
}

func play(a *agreement, now int64, event string) effects {
	var version uint64
	if _, err := fmt.Sscanf(event, "load %d", &version); err == nil {
		return a.load(now, version)
	}
	if event == "tick" {
		return a.step(now)
	}
	var members []memberRules
	if event != "none" {
		for _, f := range strings.Fields(event) {
			m := memberRules{}
			id, rest, _ := strings.Cut(f, "=")
			m.ID = id
			fmt.Sscanf(rest, "%d/%d", &m.InForce, &m.Prepared)
			members = append(members, m)
		}
	}
	return a.setMembers(now, members)
}

func TestAgreementNames(t *testing.T) {
	a := agreement{wait: 90, inForce: 1}
	a.setMembers(0, []memberRules{{"a", 1, 2}, {"b", 1, 0}, {"c", 3, 0}, {"d", 0, 0}})
	a.load(0, 2)
	if got := a.lacking(); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("waits for %v", got)
	}
	if got := a.disagreeing(); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("disagree: %v", got)
	}
}

// A cluster with delayed and reordered gossip. All members load the same versions in the same order, seconds apart.
// Laws: all end with the last version; no member switches while another live member that has rules has not loaded it,
// unless the wait is over; the version in force only increases.
func TestAgreementCluster(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n, versions := 2+rng.IntN(6), 2+rng.IntN(4)
		members := make([]agreement, n)
		heard := make([][]memberRules, n) // the last report to member i about each
		loaded := make([]uint64, n)       // the newest version that each has loaded
		due := make([][]int64, n)         // when member i loads version v+1
		for i := range members {
			members[i].wait = 90
			heard[i] = make([]memberRules, n)
			due[i] = make([]int64, versions)
			for v := range due[i] {
				due[i][v] = int64(v*40 + rng.IntN(30))
			}
		}
		for now := int64(0); now < int64(versions)*40+60; now++ {
			for i := range members {
				before := members[i]
				switched := reason("")
				for v, at := range due[i] {
					if at == now {
						loaded[i] = uint64(v + 1)
						switched = members[i].load(now, loaded[i]).switched
					}
				}
				if rng.IntN(3) > 0 { // gossip of one member arrives; the reports about the others stay
					j := rng.IntN(n)
					heard[i][j] = memberRules{fmt.Sprint(j), members[j].inForce, members[j].prepared}
				}
				others := slices.Delete(slices.Clone(heard[i]), i, i+1)
				if e := members[i].setMembers(now, others); e.switched != "" {
					switched = e.switched
				}
				if members[i].inForce < before.inForce {
					t.Fatalf("seed %d, %d s: member %d goes back from %d to %d", seed, now, i, before.inForce, members[i].inForce)
				}
				if switched != agreed {
					continue
				}
				for j := range heard[i] {
					if j != i && heard[i][j].InForce != 0 && loaded[j] < members[i].inForce {
						t.Fatalf("seed %d, %d s: member %d uses %d, member %d has read %d", seed, now, i, members[i].inForce, j, loaded[j])
					}
				}
			}
		}
		for i := range members {
			if members[i].inForce != uint64(versions) || members[i].prepared != 0 {
				t.Fatalf("seed %d: member %d ends with %d/%d of %d", seed, i, members[i].inForce, members[i].prepared, versions)
			}
		}
	}
}

func TestHistory(t *testing.T) {
	var h history
	now := newTime()
	for i := range uint64(30) {
		h.replace(now)
		h.prepare(Version{Hash: i + 1})
		if i == 0 {
			h.switchTo(1, first, now)
		}
	}
	if len(h) != kept || h[0].Hash != 1 || h[0].State != InForce || h[kept-1].Hash != 30 || h[kept-1].State != Prepared {
		t.Errorf("after 30 loads: %+v", h)
	}
	h.switchTo(30, agreed, now)
	if h[0].State != Past || h[kept-1].State != InForce || h[kept-1].Reason != "agreed" {
		t.Errorf("after a switch: %+v", h)
	}
}
