package ringcheck

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/keyward/keyward/ring"
)

// hashLines returns Envoy's hash of a header with these lines: sorted bytewise, each hash seeding the next. Without a
// line there is no hash, and Envoy selects a random host.
func hashLines(lines ...string) (h uint64, ok bool) {
	sorted := lines
	if !slices.IsSorted(lines) {
		sorted = slices.Sorted(slices.Values(lines))
	}
	var d xxhash.Digest
	for _, line := range sorted {
		d.ResetWithSeed(h)
		_, _ = d.WriteString(line) // never fails
		h = d.Sum64()
	}
	return h, len(lines) > 0
}

// hashHeader returns hashLines for the header of this name. Envoy keeps some headers on one line: it joins their values
// with commas in the order sent.
func hashHeader(name string, lines ...string) (h uint64, ok bool) {
	if len(lines) > 1 && inline(strings.ToLower(name)) {
		return ring.Hash(strings.Join(lines, ",")), true
	}
	return hashLines(lines...)
}

// inline reports whether Envoy 1.40 keeps the header with this lower-case name on one line.
func inline(name string) bool {
	switch name {
	case ":authority", "accept", "accept-encoding", "access-control-request-headers", "access-control-request-method",
		"access-control-request-private-network", "authorization", "cache-control", "content-encoding", "content-type",
		"expect", "grpc-accept-encoding", "grpc-timeout", "host", "if-match", "if-modified-since", "if-none-match",
		"if-range", "if-unmodified-since", "origin", "pragma", "proxy-status", "referer", "user-agent", "via",
		"x-client-trace-id", "x-envoy-attempt-count", "x-envoy-decorator-operation",
		"x-envoy-downstream-service-cluster", "x-envoy-external-address", "x-envoy-is-timeout-retry",
		"x-envoy-original-host", "x-envoy-original-path", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port",
		"x-forwarded-proto", "x-request-id":
		return true
	}
	return false
}

// murmurSeed is the seed of std::hash in libstdc++.
const murmurSeed = 0xc70f6907

// murmur2 returns the 64-bit MurmurHash2 of libstdc++, Envoy's MURMUR_HASH_2. It places hosts only; requests use
// xxHash.
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
