package ring

import "github.com/cespare/xxhash/v2"

// Hash returns Envoy's hash of a header value. It is the ring position of a key with that owner string.
func Hash(s string) uint64 { return xxhash.Sum64String(s) }
