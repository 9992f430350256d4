package ring

import (
	"errors"
	"fmt"
	"math/bits"
)

// The limits of a ring.
const (
	// DefaultCapacity is the default of C, the total weight of the ring. The void locality has what the members do not
	// use.
	DefaultCapacity = 1024
	// MaxCapacity is the largest C. PointsPerWeight x C is the size of Envoy's largest ring, 8388608.
	MaxCapacity = 8192
	// MaxID is the longest ID in bytes. Envoy can crash on host names of 192 bytes.
	MaxID = 128
)

// EnvoyCapacity returns the C to configure in Envoy for a ring of this capacity: the next power of two. The weights of
// all localities add up to it, and minimum_ring_size is PointsPerWeight times it. With any other C, rounding of doubles
// in Envoy gives some members one point too many or too few. Capacity 0 means DefaultCapacity.
func EnvoyCapacity(capacity int) int {
	if capacity <= 0 {
		capacity = DefaultCapacity
	}
	return 1 << bits.Len(uint(min(capacity, MaxCapacity)-1))
}

// Validate reports every reason why members cannot be placed on a ring of this capacity, here or in Envoy: a missing,
// long or duplicate ID, or weights that leave nothing for the void locality. Capacity 0 means DefaultCapacity.
func Validate(members []Member, capacity int) error {
	var faults []error
	if capacity == 0 {
		capacity = DefaultCapacity
	}
	if capacity < 2 || capacity > MaxCapacity {
		faults = append(faults, fmt.Errorf("ring capacity %d: must be 2 to %d", capacity, MaxCapacity))
	}
	uses := make(map[ID]int, len(members))
	var weight uint64
	for i, m := range members {
		uses[m.ID]++
		weight += uint64(max(m.Weight, 1))
		switch {
		case m.ID == "":
			faults = append(faults, fmt.Errorf("member %d: has no name", i))
		case len(m.ID) > MaxID:
			err := fmt.Errorf("member %q...: its name has %d bytes, at most %d are allowed", m.ID[:32], len(m.ID), MaxID)
			faults = append(faults, err)
		}
	}
	for _, m := range members {
		if n := uses[m.ID]; n > 1 && m.ID != "" {
			faults = append(faults, fmt.Errorf("member %q: its name is used %d times", m.ID[:min(len(m.ID), MaxID)], n))
			uses[m.ID] = 0
		}
	}
	if weight > uint64(max(capacity-1, 0)) {
		err := fmt.Errorf("weights add up to %d: a ring of capacity %d holds at most %d", weight, capacity, capacity-1)
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
