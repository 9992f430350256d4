//go:build skewed

package peer

import "time"

// buildSkew makes a program of which tests need one whose clock is wrong (go build -tags skewed): a process cannot be given a wall clock of its own.
const buildSkew = 3 * time.Second
