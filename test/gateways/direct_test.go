package gateways

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// sdsFiles is the folder that the chart's ConfigMap keyward-sds is made of.
var sdsFiles, _ = filepath.Abs("../../charts/keyward/files/envoy")

// startXDS starts the chart's xDS server and waits until it has the members.
func (s *suite) startXDS(t *testing.T) {
	t.Helper()
	const name = "keyward-xds"
	ip, err := addHost(name)
	if err != nil {
		t.Fatal(err)
	}
	names.set(name, ip)
	p := &pod{
		Name: name, Host: name, User: s.cluster.user,
		Command: []string{"/bin/xds", "--xds=:18000", "--tls-peer-names=keyward." + namespace + ".svc"},
		Env: []string{
			"POD_NAME=" + name, "POD_IP=" + ip, "POD_UID=uid-of-" + name,
			"KEYWARD_CLUSTER=" + namespace + "/keyward", "KEYWARD_JOIN=dns+keyward-gossip:7946", "KEYWARD_GOSSIP_KEY_FILE=/etc/keyward/gossip/gossip.key",
			"KEYWARD_TLS_CERT=/etc/keyward/tls/tls.crt", "KEYWARD_TLS_KEY=/etc/keyward/tls/tls.key", "KEYWARD_TLS_CA=/etc/keyward/tls/ca.crt",
		},
		Mounts: map[string]string{
			"/bin/xds": filepath.Join(programs, "xds"), "/etc/keyward/gossip": s.cluster.volumes["keyward-gossip"],
			"/etc/keyward/tls": s.cluster.volumes["keyward-xds-tls"], "/run/keyward": "",
		},
	}
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	s.xds = p
	ctx, cancel := timeout(t, 30*time.Second)
	defer cancel()
	if err := p.awaitPage(ctx, ip+":9090/readyz"); err != nil {
		t.Fatal(err)
	}
}

// directCalls are the counts of members of requests that Envoy sent to the owner of their key, and to another member.
func (s *suite) directCalls(ctx context.Context) (direct, misrouted float64, err error) {
	if direct, err = s.cluster.sum(ctx, "keyward_direct_total"); err != nil {
		return 0, 0, err
	}
	misrouted, err = s.cluster.sum(ctx, "keyward_misrouted_total")
	return direct, misrouted, err
}

// testOwnerDirect makes Envoy call owners, by the resources of keyward envoy-config, and requires that all calls reach them.
func testOwnerDirect(t *testing.T, s *suite) {
	s.startXDS(t)
	if err := s.gateway.direct(true); err != nil {
		t.Fatal(err)
	}
	s.checkDirect(t, "direct", perTenant(2))
}

// testOwnerDirectShared is testOwnerDirect with a rule that several routes share, which has a filter of its own in some gateways.
func testOwnerDirectShared(t *testing.T, s *suite) {
	p := perTenant(2)
	p.rules[0].shared = true
	s.checkDirect(t, "directshared", p)
	if err := s.gateway.direct(false); err != nil {
		t.Fatal(err)
	}
}

func (s *suite) checkDirect(t *testing.T, route string, p policy) {
	t.Helper()
	s.enforce(t, route, p, clientHeader, "probe")
	s.awaitDirect(t, route)
	before, missed, err := s.directCalls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const tenants = 70
	for i := range tenants {
		for n, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
			if a := s.send(t, route, clientHeader, fmt.Sprintf("tenant-%d", i)); a.status != want {
				t.Errorf("tenant %d, request %d: status %d, want %d", i, n+1, a.status, want)
			}
		}
	}
	after, missedAfter, err := s.directCalls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if direct, misrouted := after-before, missedAfter-missed; direct < 3*tenants || misrouted > 0 {
		t.Errorf("of %d calls, %v reached the owner and %v another member", 3*tenants, direct, misrouted)
	}
	s.figure(t, "%v of %d calls reached the owner", after-before, 3*tenants)
}

// awaitDirect waits until the calls of a route reach owners: the patch needs some time, and Envoy waits up to 30 s before it tries again
// to reach an xDS server.
func (s *suite) awaitDirect(t *testing.T, route string) {
	t.Helper()
	ctx, cancel := timeout(t, 90*time.Second)
	defer cancel()
	round := 0
	if err := lab.Await(ctx, "calls to owners", func(ctx context.Context) error {
		round++
		before, _, err := s.directCalls(ctx)
		if err != nil {
			return err
		}
		const calls = 10
		for i := range calls {
			if _, err := s.get(s.client, route, clientHeader, fmt.Sprintf("warm-%d-%d", round, i)); err != nil {
				return err
			}
		}
		after, _, err := s.directCalls(ctx)
		if err == nil && after-before < calls {
			err = fmt.Errorf("%v of %d calls reached the owner", after-before, calls)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
