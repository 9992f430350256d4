package rulecheck

import (
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// shared returns a rule whose limit several regions share.
func shared(n uint32, window time.Duration, floor uint8, o federation.Outage) *config.RuleSpec {
	r := &config.RuleSpec{Limit: limit.Rule{Limit: n, Window: window}}
	r.Extension.Federation = &config.Federation{Terms: &federation.RuleTerms{Floor: floor, Outage: o}}
	return r
}

// TestRegionBounds compares the rows of the outage table with numbers computed by hand: 1,000 hits, regions of weight 2, 1
// and 1, with floors of 25, 12 and 12, and a pool of 951.
func TestRegionBounds(t *testing.T) {
	c := Conditions{Members: 3, Regions: &FederationConditions{Weights: []uint32{2, 1, 1}, Lag: 300 * time.Millisecond, RoundTrip: 100 * time.Millisecond}}
	for o, want := range map[federation.Outage][3]uint64{ // a region is cut off, the coordinator is away, refused in the region
		federation.FailClosed:   {0, 0, 975},
		federation.RegionalOnly: {475, 951, 500},
		federation.Snapshot:     {500, 1000, 975},
		federation.FailOpen:     {3 * 40, 3 * 3 * 40, 1000 - 25 - 40},
	} {
		r := shared(1000, time.Minute, 5, o)
		r.Extension.LocalCap = 40
		b := BoundsOf(r, c)
		if f := *b.Federation; f.Regions != 3 || f.Pool != 951 || f.Slice != 500 || f.Floor != 25 || f.Floors != 49 || f.Lot != 50 {
			t.Fatalf("%+v", f)
		}
		cut, away := bound(t, b, "a region is cut off"), bound(t, b, "the coordinator is away")
		if cut.Over != want[0] || away.Over != want[1] || cut.Under != want[2] || away.Under != want[2] {
			t.Errorf("%v: %+v, %+v, want %v", o, cut, away, want)
		}
		for event, over := range map[string]uint64{
			"nothing fails": 0, "join, leave": 0, "messages between": 0, "all members of a region restart": 25,
			"all members of the region that is": 951, "the coordinator's store": 951, "the store fails over": 3 * 3 * 50, "clocks differ": 0,
		} {
			if x := bound(t, b, event); x.Over != over {
				t.Errorf("%v: %+v, want %d", o, x, over)
			}
		}
		if x := bound(t, b, "the owner of a key crashes"); x.Over != 1+b.Open || x.Under != 50 {
			t.Errorf("%v: %+v", o, x)
		}
		r.Extension.Strict = true
		if x := bound(t, BoundsOf(r, c), "the owner of a key crashes"); x.Over != b.Open {
			t.Errorf("%v, strict: %+v", o, x)
		}
	}
}

// TestRegionPartition requires that only the policy available spends a floor twice.
func TestRegionPartition(t *testing.T) {
	for p, over := range map[policy.Partition]uint64{policy.PartShare: 1, policy.PartQuorum: 1, policy.PartAvailable: 25} {
		b := BoundsOf(shared(1000, time.Minute, 5, federation.FailClosed), Conditions{Members: 3, Partition: p, Regions: &FederationConditions{Weights: []uint32{2, 1, 1}}})
		if x := bound(t, b, "the members of a region are partitioned"); x.Over != over || x.Under != 1000 {
			t.Errorf("%v: %+v, want %d", p, x, over)
		}
	}
}

// TestRegionOutage requires that the cost of an outage is that of its windows: of a snapshot once.
func TestRegionOutage(t *testing.T) {
	r := shared(1000, time.Minute, 5, federation.RegionalOnly)
	r.Extension.LocalCap = 40
	c := Conditions{Members: 3, Outage: 5 * time.Minute, Regions: &FederationConditions{Weights: []uint32{2, 1, 1}}}
	o := BoundsOf(r, c).Outage
	want := []struct{ over, partial uint64 }{{0, 0}, {5 * 951, 951}, {1000, 0}, {5 * 3 * 3 * 40, 3 * 3 * 40}}
	if o.Windows != 5 || len(o.Policies) != len(want) {
		t.Fatalf("%+v", o)
	}
	for i, p := range o.Policies {
		if p.Over != want[i].over || p.Partial != want[i].partial || p.Current != (p.Policy == "regional_only") {
			t.Errorf("%+v, want %v", p, want[i])
		}
	}
}

// TestStaticRegions requires that a rule without a pool has no rows about a coordinator.
func TestStaticRegions(t *testing.T) {
	r := shared(90, time.Hour, 100, federation.FailClosed)
	b := BoundsOf(r, Conditions{Members: 3, Outage: time.Hour, Regions: &FederationConditions{Weights: []uint32{1, 1, 1}}})
	if b.Federation.Pool != 0 || b.Federation.Floor != 30 || b.Outage != nil || bound(t, b, "nothing fails").Under != 60 {
		t.Errorf("%+v, %+v", b.Federation, b.Outage)
	}
	for _, x := range b.Bounds {
		if strings.Contains(x.Event, "coordinator is") || strings.Contains(x.Event, "store") {
			t.Errorf("%+v", x)
		}
	}
}
