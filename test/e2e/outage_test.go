package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/miekg/dns"

	"github.com/keyward/keyward/internal/lab"
)

// startNameServer answers every name with 127.0.0.1, and returns how to stop it and how often it was asked. A resolv.conf
// has no place for a port, so it takes port 53 of a loopback address of its own.
func startNameServer(t *testing.T) (resolv string, asked *atomic.Int64, stop func()) {
	t.Helper()
	const addr = "127.0.0.177"
	pc, err := net.ListenPacket("udp", addr+":53")
	if err != nil {
		t.Fatal(err)
	}
	asked = &atomic.Int64{}
	srv := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(r)
		for _, q := range r.Question {
			if q.Qtype == dns.TypeA {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)})
			}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = srv.ActivateAndServe() }()
	t.Cleanup(func() { _ = srv.Shutdown() })
	resolv = filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+addr+"\noptions timeout:1 attempts:1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return resolv, asked, func() { _ = srv.Shutdown() }
}

// TestNameServiceAndXDSOutage stops the name server by which the members find each other, and xDS, for 20 seconds, a
// minute with KEYWARD_LONG, under load: nothing changes for anyone.
func TestNameServiceAndXDSOutage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to give the members a name server of their own")
	}
	resolv, asked, stopNames := startNameServer(t)
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Resolv: resolv})
	members := names(3)
	for i, n := range members {
		var args []string
		if i > 0 {
			args = []string{"--join", "dns+keyward.test:" + port(l.Sidecars[0].Gossip)}
		}
		if _, err := l.AddSidecar(n, args...); err != nil {
			t.Fatal(err)
		}
	}
	xds, e := ownerDirect(t, l, "", "--failure-mode-deny", "--timeout", "1s")
	if asked.Load() == 0 {
		t.Error("the members joined without asking the name server")
	}
	stopNames()
	outage := 20 * time.Second // members look for each other again every 15 s
	if long() {
		outage = time.Minute
	}
	if err := xds.Stop(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(outage)
	sent := 0
	for round := 0; time.Now().Before(until); round++ {
		keys := distinctKeys(fmt.Sprintf("round-%d", round), 100)
		if got := tally(sendKeys(e.Listener, keys, 4)); got[200] != len(keys) {
			t.Fatalf("without xDS, round %d: answers by status %v", round, got)
		}
		sent += len(keys)
		steadily(200 * time.Millisecond) // the length counts, not the load
	}
	if m := misrouted(t, l, e); m != 0 {
		t.Errorf("%v requests were misrouted", m)
	}
	if d := sum(t, l, "keyward_degraded_total"); d != 0 {
		t.Errorf("%v answers were degraded", d)
	}
	if d := sum(t, l, "keyward_direct_total") + sum(t, l, "keyward_misrouted_total"); d < float64(sent) {
		t.Errorf("%v answers of %d with a key", d, sent)
	}
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

const degradedRules = `domain: app
descriptors:
  - key: share
    rate_limit: {unit: hour, requests_per_unit: 30}
  - key: open
    rate_limit: {unit: hour, requests_per_unit: 30}
    metadata: {keyward: {degraded: fail_open, local_cap: 12}}
  - key: closed
    rate_limit: {unit: hour, requests_per_unit: 30}
    metadata: {keyward: {degraded: fail_closed}}
`

// TestSilentOwner stops an owner's process without ending it: the others must answer by each rule's degraded policy, in
// time, and count that they did.
func TestSilentOwner(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": degradedRules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	victim := l.Sidecars[0]
	var keys []string
	for k, o := range owners(t, l, members, distinctKeys("k", 60)) {
		if o == victim.Name {
			keys = append(keys, k)
		}
	}
	if len(keys) < 6 {
		t.Fatalf("only %d keys of %s", len(keys), victim.Name)
	}
	asked := dial(t, l.Sidecars[1].RLS, nil)
	admitted := func(rule, key string, n int) (ok int) {
		for range n {
			if ask(t, asked, request("app", 1, rule, key)).OverallCode == rlsv3.RateLimitResponse_OK {
				ok++
			}
		}
		return ok
	}
	// While the owner answers, six hits leave 24 of 30, which the asked member remembers for the closed rule.
	if n := admitted("closed", keys[2], 6); n != 6 {
		t.Fatalf("%d of 6 admitted before", n)
	}
	// Of hits that the owner was asked for itself, only its successor knows.
	direct := dial(t, victim.RLS, nil)
	if res := ask(t, direct, request("app", 6, "closed", keys[3])); res.OverallCode != rlsv3.RateLimitResponse_OK {
		t.Fatal("6 hits were refused")
	}
	awaitReplicas(t, victim)
	if err := victim.Pause(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	byCopy := closedByReplica(t, l, keys[3])
	if n := admitted("share", keys[0], 20); n != 10 {
		t.Errorf("local_share admitted %d of 20 hits, its share of 30 among 3 is 10", n)
	}
	if n := admitted("open", keys[1], 20); n != 12 {
		t.Errorf("fail_open admitted %d of 20 hits, its cap is 12", n)
	}
	if n := admitted("closed", keys[2], 20); n != 8 {
		t.Errorf("fail_closed admitted %d of 20 hits, its share of the 24 that were left is 8", n)
	}
	if n := admitted("closed", keys[5], 5); n != 0 {
		t.Errorf("fail_closed admitted %d hits on a key that nothing is known of", n)
	}
	t.Logf("85 requests about a silent owner took %s", time.Since(begin).Round(time.Millisecond))
	fam := metrics(t, l.Sidecars[1].Metrics)
	if d := value(fam, "keyward_degraded_total"); d != 75 {
		t.Errorf("%v degraded answers were counted, not 75", d)
	}
	if b := value(fam, "keyward_overadmission_bound"); b < 10 {
		t.Errorf("the exported bound is %v although a share of 10 was spent", b)
	}
	if err := victim.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// The old owner goes on. What the others have admitted may be above the limit, and no more.
	total, bound := 6+byCopy, sum(t, l, "keyward_overadmission_bound")
	for range 40 {
		if ask(t, direct, request("app", 1, "closed", keys[3])).OverallCode == rlsv3.RateLimitResponse_OK {
			total++
		}
	}
	t.Logf("%d of 30 admitted in all, %d of them by the successor's replica; bound %v", total, byCopy, bound)
	if total > 30+byCopy || float64(total) > 30+bound {
		t.Errorf("%d admitted of 30, %d of them without the owner; the exported bound is %v", total, byCopy, bound)
	}
	awaitRing(t, l, members...)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	before := value(metrics(t, l.Sidecars[1].Metrics), "keyward_degraded_total")
	if err := lab.Await(ctx, "the owner to be asked again", func(context.Context) error {
		ask(t, asked, peek("app", "share", keys[4]))
		after := value(metrics(t, l.Sidecars[1].Metrics), "keyward_degraded_total")
		if after != before {
			before = after
			return fmt.Errorf("still degraded")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// closedByReplica asks all members but the first, the owner, for 10 hits on a fail_closed key of which 24 are left.
// Only the successor has a replica: it admits its share of 23, since U is 1. It returns what it has admitted.
func closedByReplica(t *testing.T, l *lab.Lab, key string) (all int) {
	t.Helper()
	admitted := make([]int, 0, 2)
	for _, s := range l.Sidecars[1:] {
		c, n := dial(t, s.RLS, nil), 0
		for range 10 {
			if ask(t, c, request("app", 1, "closed", key)).OverallCode == rlsv3.RateLimitResponse_OK {
				n++
			}
		}
		admitted, all = append(admitted, n), all+n
	}
	if slices.Min(admitted) != 0 || all < 7 || all > 8 {
		t.Errorf("fail_closed admitted %v hits of the 23 that a replica has left: want 0, and a share of 7 or 8", admitted)
	}
	return all
}

// awaitReplicas waits until other members have confirmed all charges of s.
func awaitReplicas(t *testing.T, s *lab.Sidecar) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "replicas of "+s.Name, func(context.Context) error {
		if n := value(metrics(t, s.Metrics), "keyward_unreplicated_hits"); n != 0 {
			return fmt.Errorf("%v hits are not confirmed", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

const billingRules = `domain: app
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 60}
    metadata: {keyward: {degraded: fail_closed}}
  - key: api_key
    value: bucket*
    rate_limit: {unit: hour, requests_per_unit: 60}
    metadata: {keyward: {degraded: fail_closed, algorithm: token_bucket}}
`

// TestBillingInAnOutage kills an owner that Envoys ask directly, with half of two limits used: both keys continue to be
// admitted before the takeover is complete, and in all no more than the limit.
func TestBillingInAnOutage(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": billingRules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	xds, first := ownerDirect(t, l, "", "--failure-mode-deny", "--timeout", "1s")
	envoys := []*lab.Envoy{first, addEnvoy(t, l, lab.EnvoyOptions{
		Name: "envoy-2", Shape: "owner-direct", XDS: xds.Addr, Upstream: startUpstream(t).addr,
		Args: []string{"--from", "api_key=header:x-api-key", "--failure-mode-deny", "--timeout", "1s"},
	}, "keyward", 3)}
	victim := l.Sidecars[0]
	mine := func(prefix string) string {
		for k, o := range owners(t, l, members, distinctKeys(prefix, 30)) {
			if o == victim.Name {
				return k
			}
		}
		t.Fatalf("%s owns no key of 30", victim.Name)
		return ""
	}
	keys := []string{mine("window"), mine("bucket")}
	admitted, asked := map[string]int{}, 0
	round := func() (ok int) {
		for _, k := range keys {
			asked++
			if sendKeys(envoys[asked/2%2].Listener, []string{k}, 1)[0].status == 200 {
				admitted[k]++
				ok++
			}
		}
		return ok
	}
	for range 30 {
		if round() != len(keys) {
			t.Fatalf("the first half: %v", admitted)
		}
	}
	if n := value(metrics(t, victim.Metrics), "keyward_direct_total"); n != 60 {
		t.Fatalf("%v of 60 requests reached the owner without a hop", n)
	}
	awaitReplicas(t, victim)
	victim.Kill()
	for range 15 { // the takeover takes at least 2 s
		round()
	}
	before := maps.Clone(admitted)
	for _, k := range keys {
		if before[k] <= 30 {
			t.Errorf("%s: no hit was admitted before the takeover", k)
		}
	}
	closed := sum(t, l, "keyward_degraded_admitted_hits_total", "authority", "fail_closed")
	if bound := sum(t, l, "keyward_overadmission_bound_by_cause", "cause", "fail_closed"); closed == 0 || closed > 20 ||
		bound == 0 || bound > closed {
		t.Errorf("%v hits were admitted by fail_closed, of two shares of 10; the exported bound is %v", closed, bound)
	}
	awaitRing(t, l, members[1:]...)
	awaitEnvoy(t, first, "keyward", 2)
	for quiet := 0; quiet < 20; quiet++ {
		if round() > 0 {
			quiet = 0
		}
	}
	t.Logf("admitted until shortly after the kill %v, in all %v", before, admitted)
	for _, k := range keys {
		if n := admitted[k]; n > 60 || n < 58 {
			t.Errorf("%s: %d admitted of 60", k, n)
		}
	}
}

// TestKilledOwnerThroughEnvoy kills an owner: Envoy's retry reaches the successor, so no request goes unanswered.
func TestKilledOwnerThroughEnvoy(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	_, e := ownerDirect(t, l, "", "--failure-mode-deny", "--timeout", "1s")
	keys := distinctKeys("warm", 300)
	if got := tally(sendKeys(e.Listener, keys, 4)); got[200] != len(keys) {
		t.Fatalf("before: %v", got)
	}
	var stop atomic.Bool
	done := make(chan map[int]int, 1)
	go func() {
		total := map[int]int{}
		for round := 0; !stop.Load(); round++ {
			for s, n := range tally(sendKeys(e.Listener, distinctKeys(fmt.Sprintf("r%d", round), 200), 4)) {
				total[s] += n
			}
		}
		done <- total
	}()
	l.Sidecars[0].Kill()
	awaitRing(t, l, members[1:]...)
	awaitEnvoy(t, e, "keyward", 2)
	stop.Store(true)
	got := <-done
	t.Logf("answers while an owner was killed: %v", got)
	all := 0
	for _, n := range got {
		all += n
	}
	// Calls that were in flight on the dead connections may fail; keys asked afterwards may not.
	if failed := all - got[200]; failed > 8 {
		t.Errorf("%d of %d requests failed", failed, all)
	}
	if got := tally(sendKeys(e.Listener, distinctKeys("after", 300), 4)); got[200] != 300 {
		t.Errorf("after: %v", got)
	}
}

// TestSilentOwnerThroughEnvoy stops an owner without ending it: Envoy's retry asks the successor, which answers in the owner's
// place, so that no request is let through uncounted.
func TestSilentOwnerThroughEnvoy(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	_, e := ownerDirectWithin(t, l, "250ms", "", "--failure-mode-deny", "--timeout", "1s")
	keys := distinctKeys("warm", 200)
	if got := tally(sendKeys(e.Listener, keys, 4)); got[200] != len(keys) {
		t.Fatalf("before: %v", got)
	}
	victim := l.Sidecars[2]
	if err := victim.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Signal(syscall.SIGCONT) })
	keys = distinctKeys("silent", 200)
	got := tally(sendKeys(e.Listener, keys, 4))
	his := 0
	for _, o := range owners(t, l, members, keys) {
		if o == victim.Name {
			his++
		}
	}
	t.Logf("answers while the owner of %d of 200 keys was silent: %v", his, got)
	if got[200] != len(keys) {
		t.Errorf("answers by status: %v, want %d times 200", got, len(keys))
	}
}

// TestNameCollision starts a second member under a name that is taken: the newcomer ends and names both addresses, the
// other never notices.
func TestNameCollision(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}})
	start(t, l, "pod-a")
	first := l.Sidecars[0]
	second, err := l.AddSidecar("pod-a")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-second.Exited():
	case <-time.After(30 * time.Second):
		t.Fatal("two members of one name live side by side")
	}
	if said := second.Tail(4000); second.ExitCode() != 1 || !strings.Contains(said, first.Gossip) || !strings.Contains(said, second.Gossip) {
		t.Errorf("exit code %d, and not both %s and %s are named:\n%s", second.ExitCode(), first.Gossip, second.Gossip, said)
	}
	awaitRing(t, l, "pod-a")
	ask(t, dial(t, first.RLS, nil), request("app", 1, "api_key", "x"))
}
