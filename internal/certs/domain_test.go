package certs

import "testing"

// A * in place of the trust domain matches only itself, whatever the rest of the pattern.
func TestTrustDomainIsNoPattern(t *testing.T) {
	for _, pattern := range []string{"spiffe://*/ns/a/sa/rl", "spiffe://*/ns/*/sa/rl", "spiffe://*/*/*/*/*", "spiffe://*"} {
		if matches("spiffe://td/ns/a/sa/rl", pattern) {
			t.Errorf("%s matches a name of trust domain td", pattern)
		}
	}
}
