//go:build skewed

package peer

import "time"

// buildSkew is for tests of a member whose wall clock is wrong (go build -tags skewed): a process cannot have its own
// wall clock.
const buildSkew = 3 * time.Second
