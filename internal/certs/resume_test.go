package certs

import (
	"crypto/tls"
	"testing"
)

// kept is a session cache that counts the sessions it receives.
type kept struct {
	tls.ClientSessionCache
	sessions int
}

func (k *kept) Put(key string, s *tls.ClientSessionState) {
	if s != nil {
		k.sessions++
	}
	k.ClientSessionCache.Put(key, s)
}

// Clients get no sessions to resume: every connection begins with a handshake in which the server verifies the
// certificate.
func TestNoSessionIsResumed(t *testing.T) {
	c := newClock()
	dir := demo(t, c, DemoOptions{})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server := mustServer(t, DemoFiles(dir, "sidecar"), ServerOptions{MinVersion: version, Reload: Reload{Now: c.now}})
		client := mustClient(t, DemoFiles(dir, "envoy"), ClientOptions{MinVersion: version, Reload: Reload{Now: c.now}})
		cache := &kept{ClientSessionCache: tls.NewLRUClientSessionCache(8)}
		client.ClientSessionCache, client.MaxVersion = cache, version
		verify := client.VerifyConnection
		client.VerifyConnection = func(cs tls.ConnectionState) error {
			if cs.DidResume {
				t.Errorf("%s: a session was resumed", tls.VersionName(version))
			}
			return verify(cs)
		}
		for range 3 {
			if _, _, err := handshake(t, server, client); err != nil {
				t.Fatal(err)
			}
		}
		if cache.sessions > 0 {
			t.Errorf("%s: the server handed out %d sessions", tls.VersionName(version), cache.sessions)
		}
	}
}
