package ring

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// shards returns n members shard-0, shard-1, ... at port 8080.
func shards(n int) []Member {
	out := make([]Member, n)
	for i := range out {
		out[i] = Member{ID: ID(fmt.Sprintf("shard-%d", i)), BootID: 1, Weight: 1, Host: fmt.Sprintf("10.0.0.%d:8080", i)}
	}
	return out
}

func TestParametersText(t *testing.T) {
	for _, s := range []Parameters{{}, EnvoyParameters(0, 0, XXHash), EnvoyParameters(97, 1000, Murmur2)} {
		if err := s.Validate(); err != nil {
			t.Errorf("%v: %v", s, err)
		}
		if p, err := ParseParameters(s.String()); p != s || err != nil {
			t.Errorf("%v is parsed as %v, %v", s, p, err)
		}
	}
	if s := EnvoyParameters(0, 0, XXHash).String(); s != "envoy/1024/8388608/xx" {
		t.Errorf("%s", s)
	}
	for _, bad := range []string{"", "envoy", "envoy/1/2", "envoy/1/2/xx/", "envoy/-1/2/xx", "envoy/1/4294967296/xx", "envoy/1/2/md5", "maglev/1/2/xx"} {
		if s, err := ParseParameters(bad); err == nil {
			t.Errorf("%q is parsed as %v", bad, s)
		}
	}
}

func TestParametersReportAllFaults(t *testing.T) {
	err := Parameters{Envoy: true, MinSize: largestSize + 2, MaxSize: largestSize + 1, Hash: 7}.Validate()
	for _, part := range []string{"minimum_ring_size 8388610: must be 1 to 1048576", "maximum_ring_size 8388609",
		"minimum_ring_size 8388610: above maximum_ring_size 8388609", "hash_function 7"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not contain %q", err, part)
		}
	}
	if (Parameters{MinSize: 5}).Validate() == nil {
		t.Error("a ring of Keyward's own has a size")
	}
	if (Parameters{Envoy: true}).Validate() == nil {
		t.Error("a ring without points is valid")
	}
}

func TestEnvoyParametersAreInTheFingerprint(t *testing.T) {
	members := shards(3)
	s := EnvoyParameters(0, 0, XXHash)
	r := s.New(members)
	moved := slices.Clone(members)
	moved[1].Host = "10.0.0.9:8080"
	seen := map[uint64]string{New(members).Fingerprint(): "keyward"}
	for name, o := range map[string]*Ring{
		"envoy": r, "size": EnvoyParameters(1025, 0, XXHash).New(members), "maximum": EnvoyParameters(0, 5000, XXHash).New(members),
		"hash": EnvoyParameters(0, 0, Murmur2).New(members), "host": s.New(moved),
	} {
		if other, twice := seen[o.Fingerprint()]; twice {
			t.Errorf("%s has the fingerprint of %s", name, other)
		}
		seen[o.Fingerprint()] = name
	}
	if again := s.New([]Member{members[2], members[0], members[1]}); again.Fingerprint() != r.Fingerprint() {
		t.Error("the order of members is in the fingerprint")
	}
	if New(moved).Fingerprint() != New(members).Fingerprint() || New(moved).At(1).Host != "" {
		t.Error("hosts are in the fingerprint of Keyward's own ring")
	}
}

// TestEnvoyRingsShareMemory requires that a ring after a restart shares the points of the one before, and that any other
// change, also back to Keyward's own ring, gives the ring that New returns.
func TestEnvoyRingsShareMemory(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 18))
	parameters := []Parameters{EnvoyParameters(0, 0, XXHash), EnvoyParameters(500, 700, Murmur2), {}}
	r := &Ring{}
	for step := range 60 {
		members := shards(1 + rnd.IntN(8))
		for i := range members {
			members[i].BootID, members[i].Weight = rnd.Uint64N(3), uint32(1+rnd.IntN(3))
		}
		s := parameters[rnd.IntN(len(parameters))]
		r = s.Next(r, members, shards(9))
		want := s.New(members)
		if r.Fingerprint() != want.Fingerprint() || r.Parameters() != s || len(Diff(r, want)) != 0 {
			t.Fatalf("step %d: another ring than New's", step)
		}
	}
	a := parameters[0].New(shards(3))
	restarted := shards(3)
	restarted[1].BootID = 9
	if b := parameters[0].Next(a, restarted, nil); &b.table.hashes[0] != &a.table.hashes[0] {
		t.Error("a restart makes new points")
	}
}

// TestMoreMembersThanPoints requires that a ring works whose maximum size leaves members without a point.
func TestMoreMembersThanPoints(t *testing.T) {
	r := EnvoyParameters(3, 3, XXHash).New(shards(8))
	for h := range uint64(100) {
		h *= 0x9e3779b97f4a7c15
		o, s := r.Owner(h), r.Successor(h)
		order := r.Order(h, nil)
		if o < 0 || s == o || len(order) > 3 || order[0] != o || len(order) > 1 && order[1] != s {
			t.Fatalf("owner %d, successor %d, order %v", o, s, order)
		}
		if r.Rank(h, o) != 0 {
			t.Fatalf("rank of the owner %d", r.Rank(h, o))
		}
	}
}

func TestCost(t *testing.T) {
	for _, c := range []struct {
		s      Parameters
		weight uint64
		want   uint64
	}{{Parameters{}, 7, 7}, {EnvoyParameters(0, 0, XXHash), 100, 2}, {EnvoyParameters(MaxMinSize, 0, XXHash), 8191, 1032}} {
		if got := c.s.Cost(c.weight); got != c.want {
			t.Errorf("%v with weight %d costs %d, want %d", c.s, c.weight, got, c.want)
		}
	}
	for range 200 {
		members := shards(1 + rand.IntN(50))
		weight := uint64(0)
		for i := range members {
			members[i].Weight = uint32(1 + rand.IntN(100))
			weight += uint64(members[i].Weight)
		}
		s := EnvoyParameters(1+rand.Uint32N(5000), 0, XXHash)
		if r := s.New(members); uint64(len(r.table.hashes)) > s.Cost(weight)*PointsPerWeight {
			t.Fatalf("%d points of %d members cost more than %d", len(r.table.hashes), len(members), s.Cost(weight))
		}
	}
}

func BenchmarkLargestEnvoyRing(b *testing.B) {
	s, members := EnvoyParameters(MaxMinSize, 0, XXHash), shards(10)
	for b.Loop() {
		s.New(members)
	}
}
