//go:build !skewed

package peer

// buildSkew is how far the wall clock of this build is ahead of the system's. See skew_some.go.
const buildSkew = 0
