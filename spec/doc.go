// Package spec contains TLA+ modules of leases and federations, and tests that search their states in Go and with TLC.
package spec
