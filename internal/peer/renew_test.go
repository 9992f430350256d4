package peer

import (
	"crypto/x509"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Connections are replaced again and again during requests, and the owner decides every one of them.
func TestStreamsAreReplacedWithoutLoss(t *testing.T) {
	t.Parallel()
	dir := demoCA(t)
	// A connection is replaced at half to three quarters of MaxAge, which leaves half a second for a handshake.
	ms := newCluster(t, 2, tlsOptions(t, dir, "sidecar"), func(o *Options) { o.MaxAge = 2 * time.Second })
	name := ownedBy(ringOf("m0", "m1"), "m1", 1)[0]
	cut := func() int { return int(testutil.ToFloat64(ms[1].m.refusals.WithLabelValues("too_old"))) }
	var wg sync.WaitGroup
	const callers, limit = 4, 1 << 30
	for range callers {
		wg.Go(func() {
			for cut() < 3 {
				if a := ms[0].decideOne(patience, newRequest(name, limit, 1)); a.Path != owner.Forwarded {
					t.Errorf("%+v", a)
					return
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	wg.Wait()
	if n := ms[0].forwardCount(forwardBroken) + ms[0].forwardCount(forwardUnreachable); n != 0 {
		t.Errorf("%v requests lost", n)
	}
}

// A member with another member's certificate is refused, in both directions.
func TestNamesAreBoundToCertificates(t *testing.T) {
	dir := demoCA(t)
	bound := func(o *Options) {
		tlsOptions(t, dir, "sidecar")(o)
		o.VerifyMember = func(id ring.ID, chain []*x509.Certificate) error {
			return certs.CheckName(chain, "spiffe://keyward.demo/"+string(id))
		}
	}
	good := newMember(t, "sidecar", bound) // the name that its certificate carries
	liar := newMember(t, "m1", bound)
	good.setMembers([]*member{good, liar})
	liar.setMembers([]*member{good, liar})
	await(t, "the refusals", func() bool {
		return testutil.ToFloat64(good.m.refusals.WithLabelValues("name")) > 0 && good.logged("peer unreachable")
	})
	if good.liveLinks() != 0 || good.serving.Load() != 0 {
		t.Error("connected")
	}
}

// A client that opens idle connections replaces its own connections, not those of a member that connects later.
func TestIdleConnectionsDoNotKeepMembersOut(t *testing.T) {
	m := newMember(t, "m0")
	crowded := func() float64 { return testutil.ToFloat64(m.m.refusals.WithLabelValues("crowded_out")) }
	for i := 0; crowded() < maxHandshakes; i++ {
		c, err := net.Dial("tcp", m.Addr().String())
		if err != nil {
			t.Fatal(i, err)
		}
		defer c.Close()
		if i%32 == 31 {
			time.Sleep(time.Millisecond) // the kernel drops connections that arrive faster than they are accepted
		}
	}
	other := newMember(t, "m1")
	other.setMembers([]*member{m, other})
	other.awaitLinks(t, 1)
	m.handshakes.mu.Lock()
	defer m.handshakes.mu.Unlock()
	if n := len(m.handshakes.conns); n > maxHandshakes {
		t.Errorf("%d handshakes under way", n)
	}
}
