package ring

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Limits of a ring with Envoy's own parameters.
const (
	// defaultMinSize is Envoy's default of minimum_ring_size.
	defaultMinSize = 1024
	// largestSize is Envoy's largest maximum_ring_size, which is also its default.
	largestSize = 8388608
	// MaxMinSize is the largest minimum_ring_size that members adopt. Such a ring takes about 14 MB and 0.3 s to build,
	// and a member keeps several while its members change.
	MaxMinSize = 1 << 20
	// MaxHost is the longest Member.Host in bytes. Envoy can crash on host names of 192 bytes.
	MaxHost = 128
)

// Parameters determine which points the members of a ring have. The zero value is Keyward's own ring, on which a member
// has PointsPerWeight points for each unit of weight. Otherwise it is the ring that Envoy builds from a RING_HASH
// cluster with these parameters, whose endpoints are the members in the order of their IDs.
type Parameters struct {
	Envoy   bool
	MinSize uint32 // minimum_ring_size
	MaxSize uint32 // maximum_ring_size
	Hash    HashFunction
}

// EnvoyParameters returns the parameters of a RING_HASH cluster. A size of 0 means Envoy's default.
func EnvoyParameters(minSize, maxSize uint32, hash HashFunction) Parameters {
	p := Parameters{Envoy: true, MinSize: minSize, MaxSize: maxSize, Hash: hash}
	if p.MinSize == 0 {
		p.MinSize = defaultMinSize
	}
	if p.MaxSize == 0 {
		p.MaxSize = largestSize
	}
	return p
}

// Validate reports every reason why members cannot adopt p.
func (p Parameters) Validate() error {
	if !p.Envoy {
		if p != (Parameters{}) {
			return errors.New("only a ring with Envoy's parameters has a size or a hash function")
		}
		return nil
	}
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(p.MinSize == 0 || p.MinSize > MaxMinSize, "minimum_ring_size %d: must be 1 to %d", p.MinSize, MaxMinSize)
	fault(p.MaxSize == 0 || p.MaxSize > largestSize, "maximum_ring_size %d: must be 1 to %d", p.MaxSize, largestSize)
	fault(p.MinSize > p.MaxSize, "minimum_ring_size %d: above maximum_ring_size %d", p.MinSize, p.MaxSize)
	fault(p.Hash > Murmur2, "hash_function %d: unknown", p.Hash)
	return errors.Join(faults...)
}

// String returns "keyward", or "envoy" with the sizes and the hash function: envoy/1024/8388608/xx.
func (p Parameters) String() string {
	if !p.Envoy {
		return "keyward"
	}
	return fmt.Sprintf("envoy/%d/%d/%s", p.MinSize, p.MaxSize, p.Hash)
}

// ParseParameters parses what String returns. It does not validate the values.
func ParseParameters(text string) (Parameters, error) {
	if text == "keyward" {
		return Parameters{}, nil
	}
	invalid := fmt.Errorf("ring parameters %.80q: want keyward or envoy/MIN/MAX/HASH", text)
	parts := strings.Split(text, "/")
	if len(parts) != 4 || parts[0] != "envoy" {
		return Parameters{}, invalid
	}
	minSize, err := strconv.ParseUint(parts[1], 10, 32)
	maxSize, err2 := strconv.ParseUint(parts[2], 10, 32)
	hash, err3 := ParseHashFunction(parts[3])
	if err != nil || err2 != nil || err3 != nil {
		return Parameters{}, invalid
	}
	return Parameters{Envoy: true, MinSize: uint32(minSize), MaxSize: uint32(maxSize), Hash: hash}, nil
}

// points returns the number of points of each canonical member.
func (p Parameters) points(members []Member) []int {
	counts := make([]int, len(members))
	if !p.Envoy {
		for i, m := range members {
			counts[i] = PointsPerWeight * int(m.Weight)
		}
		return counts
	}
	sum := 0.0
	for _, m := range members {
		sum += float64(m.Weight)
	}
	least := 1.0
	for _, m := range members {
		least = min(least, float64(m.Weight)/sum)
	}
	// The member with the least weight gets an integral number of points. Running sums of doubles determine how many the
	// others get. The conversions prevent fused multiply-add, which Envoy's x86-64 builds do not use.
	scale := min(math.Ceil(float64(least*float64(p.MinSize)))/least, float64(p.MaxSize))
	current, target := 0.0, 0.0
	for i, m := range members {
		target += float64(scale * (float64(m.Weight) / sum))
		for ; current < target; current++ {
			counts[i]++
		}
	}
	return counts
}

// hashKey returns the string from which the points of m are hashed.
func (p Parameters) hashKey(m Member) string {
	if p.Envoy && m.Host != "" {
		return m.Host
	}
	return string(m.ID)
}

// Cost returns an upper bound of the size of a ring of members with this total weight, in units of PointsPerWeight
// points.
func (p Parameters) Cost(weight uint64) uint64 {
	if !p.Envoy {
		return weight
	}
	points := uint64(p.MinSize) + weight // rounding adds less than one point for each unit of weight
	return min(points, uint64(p.MaxSize))/PointsPerWeight + 1
}
