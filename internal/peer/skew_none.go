//go:build !skewed

package peer

// buildSkew is how far this build's wall clock is ahead of the system's: see skew_some.go.
const buildSkew = 0
