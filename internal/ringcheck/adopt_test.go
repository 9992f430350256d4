package ringcheck

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keyward/keyward/ring"
)

// TestAdoptedVectors requires that members can adopt the clusters of most recorded vectors. Check compares their rings
// with the recorded answers.
func TestAdoptedVectors(t *testing.T) {
	adopted := map[string]bool{}
	for _, path := range files(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		r, hosts := parse(t, read(t, path)).Cluster.Adopt()
		if adopted[name] = r != nil; r != nil && r.Len() != len(hosts) {
			t.Errorf("%s: %d members of %d hosts", name, r.Len(), len(hosts))
		}
	}
	for _, name := range []string{
		"default-n1", "default-n3", "default-n8", "default-n32", "addr-n5", "hostname-n5", "min-max-4099", "max1000-n3",
		"min65536-n5", "murmur-addr-weights-n7", "weights-n7", "k1000xn-n49", "k1000xn-n77",
	} {
		if !adopted[name] {
			t.Errorf("%s cannot be adopted", name)
		}
	}
	for _, name := range []string{"localities-weights-n9", "hostname-missing"} {
		if a, known := adopted[name]; a || !known {
			t.Errorf("%s is adopted: %v, recorded: %v", name, a, known)
		}
	}
}

// TestAdoptedRingIsEnvoys compares the rings of members that adopt random clusters with the rings that Envoy builds from
// them: every owner and every successor on a sample of hashes, and the number of points.
func TestAdoptedRingIsEnvoys(t *testing.T) {
	rnd := rand.New(rand.NewPCG(18, 3))
	for i := range 400 {
		c := EnvoyCluster{
			MinimumRingSize: 1 + rnd.Uint64N(5000), HashFunction: ring.HashFunction(rnd.IntN(2)), UseHostname: rnd.IntN(2) == 0,
		}
		if rnd.IntN(2) == 0 {
			c.MaximumRingSize = c.MinimumRingSize + rnd.Uint64N(3000)
		}
		weights := 1 + rnd.IntN(20)
		for n := range 1 + rnd.IntN(30) {
			c.Hosts = append(c.Hosts, Host{
				Hostname: fmt.Sprintf("shard-%d", n), Address: fmt.Sprintf("10.0.%d.%d:8080", i%256, n),
				Weight: uint32(rnd.IntN(weights)),
			})
		}
		envoys := build(t, c)
		r, hosts := c.Adopt()
		if r == nil {
			t.Fatalf("cannot adopt %+v", c)
		}
		for range 300 {
			h := rnd.Uint64()
			successor := -1
			if s := r.Successor(h); s >= 0 {
				successor = hosts[s]
			}
			if o := hosts[r.Owner(h)]; o != envoys.Owner(h) || successor != envoys.Successor(h) {
				t.Fatalf("%016x: owner %d and successor %d, envoy's are %d and %d, in %+v",
					h, o, successor, envoys.Owner(h), envoys.Successor(h), c)
			}
		}
	}
}
