package ringcheck

import (
	"fmt"
	"math"

	"github.com/keyward/keyward/ring"
)

// Adopt returns the ring of members that adopt c with --ring envoy, and the index in Hosts of each of its members. It
// returns nil if members cannot adopt c: they know no priorities and no weights of localities, and each host needs a
// hash key of its own.
func (c EnvoyCluster) Adopt() (*ring.Ring, []int) {
	if c.LocalityWeighted || c.MinimumRingSize > math.MaxUint32 || c.MaximumRingSize > math.MaxUint32 {
		return nil, nil
	}
	s := ring.EnvoyParameters(uint32(c.MinimumRingSize), uint32(c.MaximumRingSize), c.HashFunction)
	envoys, err := c.Build()
	if err != nil || s.Validate() != nil || len(envoys.levels) > 1 || len(envoys.hosts) == 0 {
		return nil, nil
	}
	members, keys := make([]ring.Member, 0, len(envoys.hosts)), map[string]bool{}
	for n, i := range envoys.hosts {
		h := &c.Hosts[i]
		key := h.hashKey(c.UseHostname)
		if key == "" || len(key) > ring.MaxHost || keys[key] || h.Weight >= ring.MaxCapacity {
			return nil, nil
		}
		keys[key] = true
		members = append(members, ring.Member{ID: ring.ID(fmt.Sprintf("%06d", n)), Weight: h.Weight, Host: key})
	}
	return s.New(members), envoys.hosts
}
