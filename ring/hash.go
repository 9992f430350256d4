package ring

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Hash returns Envoy's hash of a header value. It is the ring position of a key with that owner string.
func Hash(s string) uint64 { return xxhash.Sum64String(s) }

// HashFunction is Envoy's hash_function of a ring. It hashes the points of hosts. Requests are always hashed with
// xxHash.
type HashFunction uint8

// The hash functions.
const (
	XXHash HashFunction = iota
	Murmur2
)

// String returns xx or murmur2.
func (f HashFunction) String() string {
	switch f {
	case XXHash:
		return "xx"
	case Murmur2:
		return "murmur2"
	}
	return fmt.Sprint(uint8(f))
}

// ParseHashFunction parses xx or murmur2, also by the names XX_HASH and MURMUR_HASH_2 of Envoy's configuration.
func ParseHashFunction(s string) (HashFunction, error) {
	switch s {
	case "xx", "XX_HASH":
		return XXHash, nil
	case "murmur2", "MURMUR_HASH_2":
		return Murmur2, nil
	}
	return 0, fmt.Errorf("hash function %.40q: want xx or murmur2", s)
}

// Sum returns the hash of a point's name.
func (f HashFunction) Sum(b []byte) uint64 {
	if f == Murmur2 {
		return murmur2(b)
	}
	return xxhash.Sum64(b)
}

// murmurSeed is the seed of std::hash in libstdc++.
const murmurSeed = 0xc70f6907

// murmur2 returns the 64-bit MurmurHash2 of libstdc++, Envoy's MURMUR_HASH_2.
func murmur2(b []byte) uint64 {
	const mul = 0xc6a4a7935bd1e995
	mix := func(v uint64) uint64 { return v ^ v>>47 }
	h := uint64(murmurSeed) ^ uint64(len(b))*mul
	for ; len(b) >= 8; b = b[8:] {
		h = (h ^ mix(binary.LittleEndian.Uint64(b)*mul)*mul) * mul
	}
	if len(b) > 0 {
		var tail uint64
		for i := len(b) - 1; i >= 0; i-- {
			tail = tail<<8 | uint64(b[i])
		}
		h = (h ^ tail) * mul
	}
	return mix(mix(h) * mul)
}
