package ring

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Limits of a ring with Envoy's own settings.
const (
	// DefaultMinSize is Envoy's default of minimum_ring_size.
	DefaultMinSize = 1024
	// MaxSize is Envoy's largest maximum_ring_size, which is also its default.
	MaxSize = 8388608
	// MaxMinSize is the largest minimum_ring_size that members adopt. Such a ring takes about 14 MB and 0.3 s to build,
	// and a member keeps several while its members change.
	MaxMinSize = 1 << 20
	// MaxHost is the longest Member.Host in bytes. Envoy can crash on host names of 192 bytes.
	MaxHost = 128
)

// Settings determine which points the members of a ring have. The zero value is Keyward's own ring, on which a member
// has PointsPerWeight points for each unit of weight. Otherwise it is the ring that Envoy builds from a RING_HASH
// cluster with these settings, whose endpoints are the members in the order of their IDs.
type Settings struct {
	Envoy   bool
	MinSize uint32 // minimum_ring_size
	MaxSize uint32 // maximum_ring_size
	Hash    HashFunction
}

// EnvoySettings returns the settings of a RING_HASH cluster. A size of 0 means Envoy's default.
func EnvoySettings(minSize, maxSize uint32, hash HashFunction) Settings {
	s := Settings{Envoy: true, MinSize: minSize, MaxSize: maxSize, Hash: hash}
	if s.MinSize == 0 {
		s.MinSize = DefaultMinSize
	}
	if s.MaxSize == 0 {
		s.MaxSize = MaxSize
	}
	return s
}

// Validate reports every reason why members cannot adopt s.
func (s Settings) Validate() error {
	if !s.Envoy {
		if s != (Settings{}) {
			return errors.New("only a ring with Envoy's settings has a size or a hash function")
		}
		return nil
	}
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(s.MinSize == 0 || s.MinSize > MaxMinSize, "minimum_ring_size %d: must be 1 to %d", s.MinSize, MaxMinSize)
	fault(s.MaxSize == 0 || s.MaxSize > MaxSize, "maximum_ring_size %d: must be 1 to %d", s.MaxSize, MaxSize)
	fault(s.MinSize > s.MaxSize, "minimum_ring_size %d: above maximum_ring_size %d", s.MinSize, s.MaxSize)
	fault(s.Hash > Murmur2, "hash_function %d: unknown", s.Hash)
	return errors.Join(faults...)
}

// String returns "keyward", or "envoy" with the sizes and the hash function: envoy/1024/8388608/xx.
func (s Settings) String() string {
	if !s.Envoy {
		return "keyward"
	}
	return fmt.Sprintf("envoy/%d/%d/%s", s.MinSize, s.MaxSize, s.Hash)
}

// ParseSettings parses what String returns. It does not validate the values.
func ParseSettings(text string) (Settings, error) {
	if text == "keyward" {
		return Settings{}, nil
	}
	invalid := fmt.Errorf("ring settings %.80q: want keyward or envoy/MIN/MAX/HASH", text)
	parts := strings.Split(text, "/")
	if len(parts) != 4 || parts[0] != "envoy" {
		return Settings{}, invalid
	}
	minSize, err := strconv.ParseUint(parts[1], 10, 32)
	maxSize, err2 := strconv.ParseUint(parts[2], 10, 32)
	hash, err3 := ParseHashFunction(parts[3])
	if err != nil || err2 != nil || err3 != nil {
		return Settings{}, invalid
	}
	return Settings{Envoy: true, MinSize: uint32(minSize), MaxSize: uint32(maxSize), Hash: hash}, nil
}

// points returns the number of points of each canonical member.
func (s Settings) points(members []Member) []int {
	counts := make([]int, len(members))
	if !s.Envoy {
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
	scale := min(math.Ceil(float64(least*float64(s.MinSize)))/least, float64(s.MaxSize))
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
func (s Settings) hashKey(m Member) string {
	if s.Envoy && m.Host != "" {
		return m.Host
	}
	return string(m.ID)
}

// Cost returns an upper bound of the size of a ring of members with this total weight, in units of PointsPerWeight
// points.
func (s Settings) Cost(weight uint64) uint64 {
	if !s.Envoy {
		return weight
	}
	points := uint64(s.MinSize) + weight // rounding adds less than one point for each unit of weight
	return min(points, uint64(s.MaxSize))/PointsPerWeight + 1
}
