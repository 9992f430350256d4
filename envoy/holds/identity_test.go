package holds

import (
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/keyward/keyward/envoy/holds/client"
	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/certs"
)

// Who has another client certificate can neither settle a hold, nor extend it, nor end the session of its caller.
func TestCertificatesSeparateCallers(t *testing.T) {
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	server, err := certs.Server(certs.DemoFiles(dir, "sidecar"), certs.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, func(o *rls.StartOptions) { o.Listeners[0].TLS = server })
	as := func(role string) *client.HoldClient {
		t.Helper()
		c, err := certs.Client(certs.DemoFiles(dir, role), certs.ClientOptions{ServerSANs: []string{certs.DemoSAN("sidecar")}})
		if err != nil {
			t.Fatal(err)
		}
		return client.New(r.dial(t, credentials.NewTLS(c)), "pod-1")
	}
	own, again, other := as("envoy"), as("envoy"), as("xds")
	acme, stream := client.Descriptor("tenant", "acme"), client.Descriptor("streams", "acme")
	session, others := openSessionOf(t, own), openSessionOf(t, other)
	session.next(t)
	others.next(t)
	h, err := own.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{acme, stream}, Hits: 400})
	if err != nil {
		t.Fatal(err)
	}
	stolen := other.Find("llm", h.ID, acme, stream)
	for name, settle := range map[string]func() error{
		"release": func() error { return stolen.Release(t.Context()) },
		"keep":    func() error { return stolen.Keep(t.Context()) },
		"extend":  func() error { _, err := stolen.Extend(t.Context(), 0); return err },
		"commit":  func() error { return stolen.Commit(t.Context(), 1) },
		"session": func() error { others.end(); return nil },
	} {
		if err := settle(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n, slots := held(t, own, acme), held(t, own, stream); n != 400 || slots != 1 {
			t.Errorf("after %s by another caller, %d hits and %d slots are held", name, n, slots)
		}
	}
	<-others.done
	if err := again.Find("llm", h.ID, acme, stream).Commit(t.Context(), 100); err != nil { // another connection, the same certificate
		t.Fatal(err)
	}
	if n, slots := held(t, own, acme), held(t, own, stream); n != 0 || slots != 0 {
		t.Errorf("%d hits and %d slots are held", n, slots)
	}
	session.end()
	<-session.done
}
