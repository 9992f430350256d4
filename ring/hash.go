package ring

import "github.com/cespare/xxhash/v2"

// Hash is Envoy's hash of one header value, and so of an owner string.
func Hash(s string) uint64 { return xxhash.Sum64String(s) }
