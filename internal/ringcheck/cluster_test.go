package ringcheck

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/keyward/keyward/ring"
)

func percent(p float64) *float64 { return &p }

// hosts makes one host for each health: k-0, k-1, ...
func hosts(health ...HostHealth) []Host {
	out := make([]Host, len(health))
	for i, h := range health {
		out[i] = Host{HashKey: "k-" + strconv.Itoa(i), Health: h}
	}
	return out
}

func build(t testing.TB, c EnvoyCluster) *EnvoyRing {
	t.Helper()
	r, err := c.Build()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhoIsInTheRing(t *testing.T) {
	for _, c := range []struct {
		name      string
		threshold *float64
		health    []HostHealth
		want      []int
	}{
		{"no hosts", nil, nil, nil},
		{"unknown and healthy", nil, []HostHealth{Unknown, Healthy}, []int{0, 1}},
		{"the others are out", nil, []HostHealth{Healthy, Unhealthy, Healthy, Draining, Healthy, Timeout, Healthy, Degraded}, []int{0, 2, 4, 6}},
		{"half is enough", nil, []HostHealth{Healthy, Unhealthy}, []int{0}},
		{"panic", nil, []HostHealth{Healthy, Unhealthy, Timeout}, []int{0, 1, 2}},
		{"no panic at 0", percent(0), []HostHealth{Healthy, Unhealthy, Timeout}, []int{0}},
		{"all ill at 0", percent(0), []HostHealth{Unhealthy}, nil},
		{"draining does not count", nil, []HostHealth{Healthy, Draining, Draining, Draining}, []int{0}},
		{"but is in once in panic", nil, []HostHealth{Healthy, Draining, Unhealthy, Unhealthy}, []int{0, 1, 2, 3}},
		{"all draining", nil, []HostHealth{Draining, Draining}, []int{0, 1}},
		{"degraded hosts keep from panic", nil, []HostHealth{Healthy, Degraded, Degraded, Degraded}, []int{0}},
		{"healthy and degraded make half", nil, []HostHealth{Healthy, Degraded, Unhealthy, Unhealthy}, []int{0}},
		{"all degraded", nil, []HostHealth{Degraded, Degraded}, nil},
		{"overprovisioned enough", percent(100), []HostHealth{Healthy, Healthy, Healthy, Unhealthy}, []int{0, 1, 2}},
		{"not enough", percent(100), []HostHealth{Healthy, Healthy, Unhealthy}, []int{0, 1, 2}},
		{"whole percents only", percent(50.9), []HostHealth{Healthy, Unhealthy}, []int{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := build(t, EnvoyCluster{PanicThreshold: c.threshold, Hosts: hosts(c.health...)})
			if got := r.Hosts(); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
			if o := r.Owner(123); (o < 0) != (c.want == nil) {
				t.Errorf("owner %d", o)
			}
			if c.want == nil && (r.Gauges() != Gauges{} || r.Successor(5) != -1) {
				t.Errorf("empty ring has %+v", r.Gauges())
			}
		})
	}
}

func TestPriorities(t *testing.T) {
	const ill = Unhealthy
	for _, c := range []struct {
		name   string
		health [][]HostHealth // by priority
		want   []uint64       // load of healthy hosts
		rest   []uint64       // load of degraded hosts
		panics []bool
	}{
		{"one", [][]HostHealth{{Healthy}}, []uint64{100}, []uint64{0}, []bool{false}},
		{"spill", [][]HostHealth{{Healthy, Healthy, ill, ill, ill}, {Healthy}}, []uint64{56, 44}, []uint64{0, 0}, []bool{false, false}},
		{"first dead", [][]HostHealth{{ill}, {Healthy}}, []uint64{0, 100}, []uint64{0, 0}, []bool{false, false}},
		{"gap", [][]HostHealth{{ill}, {}, {Healthy}}, []uint64{0, 0, 100}, []uint64{0, 0, 0}, []bool{false, false, false}},
		{"both panic", [][]HostHealth{{Healthy, ill, ill, ill, ill, ill}, {Healthy, ill, ill, ill}}, []uint64{60, 40}, nil, []bool{true, true}},
		{"scaled, one panics", [][]HostHealth{{Healthy, ill}, {Healthy, ill, ill, ill, ill, ill}}, []uint64{76, 24}, []uint64{0, 0}, []bool{false, true}},
		{"degraded spill", [][]HostHealth{{Healthy, Degraded}, {Healthy, ill, ill}}, []uint64{70, 30}, []uint64{0, 0}, []bool{false, false}},
		{"degraded last", [][]HostHealth{{Healthy, Degraded, ill, ill}, {Degraded}}, []uint64{35, 0}, []uint64{35, 30}, []bool{false, false}},
		{"all dead", [][]HostHealth{{ill, ill}, {ill}}, []uint64{67, 33}, nil, []bool{true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var cl EnvoyCluster
			for p, health := range c.health {
				for _, h := range health {
					cl.Hosts = append(cl.Hosts, Host{Address: "a", Health: h, Priority: uint32(p)})
				}
			}
			got, panics := cl.distribute(cl.byPriority())
			if !slices.Equal(got.healthy, c.want) || !slices.Equal(got.degraded, c.rest) || !slices.Equal(panics, c.panics) {
				t.Errorf("%v %v %v, want %v %v %v", got.healthy, got.degraded, panics, c.want, c.rest, c.panics)
			}
			chosen := make([]uint64, len(c.want))
			for h := range uint64(100) {
				chosen[got.priority(100*h*h+h)]++
			}
			for p := range chosen {
				want := c.want[p]
				if c.rest != nil {
					want += c.rest[p]
				}
				if chosen[p] != want {
					t.Errorf("priority %d is chosen %d times of 100", p, chosen[p])
				}
			}
		})
	}
}

func TestHashKeyOfAHost(t *testing.T) {
	all := Host{HashKey: "key", Hostname: "name", Address: "1.2.3.4:5"}
	noKey := Host{Hostname: "name", Address: "1.2.3.4:5"}
	for _, c := range []struct {
		host     Host
		hostname bool
		want     string
	}{
		{all, false, "key"},
		{all, true, "key"},
		{noKey, false, "1.2.3.4:5"},
		{noKey, true, "name"},
		{Host{Address: "[::1]:5"}, false, "[::1]:5"},
		{Host{Address: "1.2.3.4:5"}, true, ""}, // Envoy does not fall back
	} {
		if got := c.host.hashKey(c.hostname); got != c.want {
			t.Errorf("%+v, hostname %v: %q, want %q", c.host, c.hostname, got, c.want)
		}
	}
}

func TestLocalLocalityIsFirst(t *testing.T) {
	c := EnvoyCluster{LocalityWeighted: true, MinimumRingSize: 5, MaximumRingSize: 5}
	for i, zone := range []string{"c", "a", "b"} {
		c.Hosts = append(c.Hosts, Host{HashKey: strconv.Itoa(i), Locality: Locality{Zone: zone}, LocalityWeight: 1})
	}
	order := func() []int {
		var out []int
		for _, w := range c.normalize([]int{0, 1, 2}, []int{0, 1, 2}) {
			out = append(out, w.host)
		}
		return out
	}
	if got := order(); !slices.Equal(got, []int{1, 2, 0}) {
		t.Errorf("order %v", got)
	}
	c.Local = Locality{Zone: "b"}
	if got := order(); !slices.Equal(got, []int{2, 1, 0}) {
		t.Errorf("order %v", got)
	}
}

func TestBuildRefuses(t *testing.T) {
	_, err := EnvoyCluster{
		MinimumRingSize: maximumRing + 2, MaximumRingSize: maximumRing + 1, HashFunction: 7, PanicThreshold: percent(math.NaN()),
		Hosts: []Host{
			{},
			{Address: "a", Health: 9, Priority: 129, Weight: math.MaxUint32},
			{Address: "b", Weight: math.MaxUint32},
			{Address: "c", Weight: math.MaxUint32},
		},
	}.Build()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{
		"maximum_ring_size 8388609", "minimum_ring_size 8388610: above maximum_ring_size 8388609", "hash_function 7", "healthy_panic_threshold NaN",
		"host 0: has neither", "host 1: unknown health status 9", "host 1: priority 129", "host 2: weights of priority 0 add up",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not contain %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "host 3") {
		t.Errorf("%q reports a fault twice", err)
	}
	if _, err := (EnvoyCluster{MaximumRingSize: 1000}).Build(); err == nil {
		t.Error("the default minimum fits into any maximum")
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	r, h := build(t, EnvoyCluster{Hosts: hosts(make([]HostHealth, 9)...)}), uint64(0)
	if n := testing.AllocsPerRun(1000, func() { h += 0x9e3779b97f4a7c15; r.Owner(h); r.Successor(h) }); n != 0 {
		t.Errorf("lookups allocate %v times", n)
	}
}

func FuzzBuild(f *testing.F) {
	f.Add(uint64(1024), uint64(8388608), byte(0), 50.0, []byte("\x00\x01\x02\x03\x04\x05\x06\x07"), uint64(7))
	f.Add(uint64(7), uint64(7), byte(5), 0.0, []byte("abc\xff\xfe\xfd"), uint64(math.MaxUint64))
	f.Add(uint64(1), uint64(1), byte(2), 100.0, []byte("\x30\x31"), uint64(0))
	f.Fuzz(func(t *testing.T, minimum, maximum uint64, flags byte, threshold float64, spec []byte, h uint64) {
		minimum, maximum = minimum%5000, maximum%5000
		c := EnvoyCluster{
			MinimumRingSize: minimum, MaximumRingSize: max(1, maximum), HashFunction: ring.HashFunction(flags & 1), UseHostname: flags&2 != 0,
			LocalityWeighted: flags&4 != 0, PanicThreshold: &threshold,
		}
		for i, b := range spec[:min(len(spec), 200)] {
			c.Hosts = append(c.Hosts, Host{
				HashKey: strings.Repeat("k", i%3), Hostname: strconv.Itoa(i), Address: "a:" + strconv.Itoa(i),
				Weight: 1 << (b & 31), Health: HostHealth(b % 6), Priority: uint32(b>>5) % 3,
				Locality: Locality{Zone: strconv.Itoa(int(b & 3))}, LocalityWeight: uint32(b>>3) % 4,
			})
		}
		r, err := c.Build()
		if err != nil {
			return
		}
		in, o, successor := r.Hosts(), r.Owner(h), r.Successor(h)
		if o >= 0 && !slices.Contains(in, o) || successor >= 0 && (successor == o || !slices.Contains(in, successor)) {
			t.Fatalf("owner %d, successor %d of %v", o, successor, in)
		}
		if !slices.IsSorted(in) || len(slices.Compact(slices.Clone(in))) != len(in) {
			t.Fatalf("hosts %v", in)
		}
		for p := range r.levels {
			points := r.levels[p]
			if uint64(len(points)) > c.MaximumRingSize+uint64(len(c.Hosts)) {
				t.Fatalf("%d points, at most %d wanted", len(points), c.MaximumRingSize)
			}
			if !slices.IsSortedFunc(points, func(a, b point) int { return cmp.Compare(a.hash, b.hash) }) {
				t.Fatal("points are not in order")
			}
		}
		sum := uint64(0)
		for p := range r.load.healthy {
			sum += r.load.healthy[p]
			if r.load.degraded != nil {
				sum += r.load.degraded[p]
			}
		}
		if sum != 100 {
			t.Fatalf("loads %+v add up to %d", r.load, sum)
		}
	})
}

// fleet returns n members m-0, m-1, ... with weights 1 to 3.
func fleet(rnd *rand.Rand, n int) []ring.Member {
	out := make([]ring.Member, n)
	for i := range out {
		out[i] = ring.Member{ID: ring.ID("m-" + strconv.Itoa(i)), Weight: uint32(1 + rnd.IntN(3))}
	}
	return out
}

// TestFixedPointsAreEnvoysRing compares package ring with the ring that Envoy builds from one locality for each member
// and a void locality.
func TestFixedPointsAreEnvoysRing(t *testing.T) {
	rnd := rand.New(rand.NewPCG(6, 1))
	for _, capacity := range []int{8, 64, 100, 1000, ring.DefaultCapacity} {
		c := ring.EnvoyCapacity(capacity)
		members := fleet(rnd, min(7, c/4))
		r := ring.New(members)
		zero := 0.0
		size := ring.PointsPerWeight * uint64(c)
		cluster := EnvoyCluster{LocalityWeighted: true, MinimumRingSize: size, PanicThreshold: &zero}
		for _, m := range members {
			locality := Locality{SubZone: "m-" + string(m.ID)}
			cluster.Hosts = append(cluster.Hosts, Host{HashKey: string(m.ID), Locality: locality, LocalityWeight: m.Weight})
		}
		void := Host{Address: "127.0.0.1:1", Health: Unhealthy, Locality: Locality{SubZone: "void"}}
		void.LocalityWeight = uint32(c) - uint32(r.Weight())
		cluster.Hosts = append(cluster.Hosts, void)
		envoy, err := cluster.Build()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(envoy.levels[0]), ring.PointsPerWeight*int(r.Weight()); got != want {
			t.Fatalf("capacity %d: envoy has %d points, we have %d", capacity, got, want)
		}
		for range 3000 {
			h := rnd.Uint64()
			if got, want := cluster.Hosts[envoy.Owner(h)].HashKey, string(r.At(r.Owner(h)).ID); got != want {
				t.Fatalf("capacity %d, hash %#x: envoy's owner %s, ours %s", capacity, h, got, want)
			}
			if got, want := cluster.Hosts[envoy.Successor(h)].HashKey, string(r.At(r.Successor(h)).ID); got != want {
				t.Fatalf("capacity %d, hash %#x: envoy's successor %s, ours %s", capacity, h, got, want)
			}
		}
	}
}
