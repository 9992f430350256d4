package ringcheck

import (
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
