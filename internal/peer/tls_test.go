package peer

import (
	"crypto/tls"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// tlsOptions sets both configurations for a role of a demo CA in dir.
func tlsOptions(t testing.TB, dir, role string) func(*Options) {
	t.Helper()
	f := certs.DemoFiles(dir, role)
	server, err := certs.Server(f, certs.ServerOptions{ClientSANs: []string{certs.DemoSAN("sidecar")}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := certs.Client(f, certs.ClientOptions{ServerSANs: []string{certs.DemoSAN("sidecar")}})
	if err != nil {
		t.Fatal(err)
	}
	return func(o *Options) { o.ServerTLS, o.ClientTLS = server, client }
}

func demoCA(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTLS(t *testing.T) {
	dir := demoCA(t)
	ms := newCluster(t, 2, tlsOptions(t, dir, "sidecar"))
	names := ownedBy(ringOf("m0", "m1"), "m1", maxRequests)
	reqs, results := make([]owner.Request, len(names)), make([]owner.Result, len(names))
	for i := range reqs {
		reqs[i] = newRequest(names[i], 10, 1)
	}
	for range 20 {
		ms[0].Decide(by(patience), false, reqs, results)
	}
	for i := range results {
		if results[i].Path != owner.Forwarded || results[i].After != 20 {
			t.Fatalf("%+v", results[i])
		}
	}
}

// A client without a member's certificate is rejected, and members do not connect to such a server.
func TestTLSRefused(t *testing.T) {
	dir, other := demoCA(t), demoCA(t)
	good := newMember(t, "m0", tlsOptions(t, dir, "sidecar"))
	for i, tt := range []struct {
		name   string
		adjust func(*Options)
	}{
		{"in the clear", func(*Options) {}},
		{"an Envoy's certificate", tlsOptions(t, dir, "envoy")},
		{"another CA's certificate", tlsOptions(t, other, "sidecar")},
		{"no certificate", func(o *Options) {
			tlsOptions(t, dir, "sidecar")(o)
			o.ClientTLS = &tls.Config{InsecureSkipVerify: true}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := newMember(t, ring.ID(fmt.Sprint("bad", i)), tt.adjust)
			before := testutil.ToFloat64(good.m.refusals.WithLabelValues("tls"))
			bad.setMembers([]*member{bad, good})
			await(t, "the refusal", func() bool {
				return testutil.ToFloat64(good.m.refusals.WithLabelValues("tls")) > before && bad.logged("peer unreachable")
			})
			if bad.liveLinks() != 0 || good.serving.Load() != 0 {
				t.Error("connected")
			}
		})
	}
	t.Run("asking a stranger", func(t *testing.T) {
		stranger := newMember(t, "stranger", tlsOptions(t, other, "sidecar"))
		good.setMembers([]*member{good, stranger})
		await(t, "the failure", func() bool { return good.logged("peer unreachable") })
		if good.liveLinks() != 0 {
			t.Error("connected")
		}
	})
}
