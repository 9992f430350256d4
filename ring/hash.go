package ring

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Hash is Envoy's hash of one header value, and so of an owner string.
func Hash(s string) uint64 { return xxhash.Sum64String(s) }

// HashLines is Envoy's hash of a header with these lines: sorted bytewise, each hash seeding the next. Without a line
// there is no hash, and Envoy takes a random host.
func HashLines(lines ...string) (h uint64, ok bool) {
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

// HashHeader is HashLines for the header of this name. Envoy keeps some headers on one line: it joins their values with
// commas in the order sent.
func HashHeader(name string, lines ...string) (h uint64, ok bool) {
	if len(lines) > 1 && inline(strings.ToLower(name)) {
		return Hash(strings.Join(lines, ",")), true
	}
	return HashLines(lines...)
}

// inline says whether Envoy keeps a header on one line, as measured with Envoy 1.40; the name is in lower case.
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

// Combine adds the hash of the next hash_policy to that of the ones before it. A policy that gives no hash is left out.
func Combine(h, next uint64) uint64 { return bits.RotateLeft64(h, 1) ^ next }

// murmurSeed is the seed of libstdc++'s std::hash.
const murmurSeed = 0xc70f6907

// murmur2 is the 64-bit MurmurHash2 of libstdc++, Envoy's MURMUR_HASH_2. It places hosts; keys are always hashed by Hash.
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
