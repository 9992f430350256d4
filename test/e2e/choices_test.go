package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// startSlowly forwards connections to an address and delays everything that comes back, without slowing its rate.
func startSlowly(t *testing.T, to string, by time.Duration) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go forwardSlowly(c, to, by)
		}
	}()
	return ln.Addr().String()
}

type piece struct {
	due  time.Time
	data []byte
}

func forwardSlowly(c net.Conn, to string, by time.Duration) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		_, _ = io.Copy(s, c)
		s.Close()
	}()
	back := make(chan piece, 1<<12)
	go func() {
		defer close(back)
		for {
			b := make([]byte, 16<<10)
			n, err := s.Read(b)
			if err != nil {
				return
			}
			back <- piece{time.Now().Add(by), b[:n]}
		}
	}()
	for p := range back {
		<-time.After(time.Until(p.due))
		if _, err := c.Write(p.data); err != nil {
			return
		}
	}
}

// TestSlowMemberGetsFewCalls has one of several members answer slowly. Envoys in shape plain send it about 1/N^2 of
// their calls with the printed policy, and 1/N with round robin.
func TestSlowMemberGetsFewCalls(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	start(t, l, names(3)...)
	slow := startSlowly(t, l.Sidecars[0].RLS, 100*time.Millisecond)
	three := []string{slow, l.Sidecars[1].RLS, l.Sidecars[2].RLS}
	twelve := slices.Clone(three)
	for i := range 9 { // more addresses of the other two members
		twelve = append(twelve, startSlowly(t, l.Sidecars[1+i%2].RLS, 0))
	}
	config := printed(t, l, "--shape", "plain", "--sidecar", slow, "--upstream", startUpstream(t).addr, "--timeout", "5s")
	const least = "    lb_policy: LEAST_REQUEST\n    least_request_lb_config: {choice_count: 2}\n"
	if !strings.Contains(config, least) {
		t.Fatalf("no policy:\n%s", config)
	}
	robin := strings.Replace(config, least, "", 1)
	for version, path := range envoyVersions(t) {
		for _, members := range [][]string{three, twelve} {
			n := float64(len(members))
			few := slowShare(t, l, path, "least-request-"+version, withEndpoints(t, config, members...), slow)
			fair := slowShare(t, l, path, "round-robin-"+version, withEndpoints(t, robin, members...), slow)
			if few > 0.6/n || fair < 0.9/n {
				t.Errorf("Envoy %s: of %v members, the slow one gets %.3f of the calls, with round robin %.3f", version, n, few, fair)
			}
		}
	}
}

// slowShare returns the part of its calls that an Envoy sends to a member.
func slowShare(t *testing.T, l *lab.Lab, path, name, config, slow string) float64 {
	t.Helper()
	e, err := l.AddEnvoy(lab.EnvoyOptions{Name: name, Path: path, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, e)
	keys := distinctKeys(e.Listener, 1500)
	took := timeKeys(t, e.Listener, keys, 16)
	sent, err := e.Requests(t.Context(), "keyward")
	if err != nil {
		t.Fatal(err)
	}
	share := float64(sent[slow]) / float64(len(keys))
	at := func(percent int) time.Duration { return took[len(took)*percent/100] }
	t.Logf("%s, %d members: %.1f %% of the calls go to the slow member; p50 %s, p90 %s, p99 %s", name, len(sent), 100*share, at(50), at(90), at(99))
	if err := e.Stop(5 * time.Second); err != nil {
		t.Error(err)
	}
	return share
}

// withEndpoints gives the cluster of members these addresses instead of its only one.
func withEndpoints(t *testing.T, config string, addresses ...string) string {
	t.Helper()
	endpoint := func(address string) string {
		_, port, _ := strings.Cut(address, ":")
		return fmt.Sprintf(`        - endpoint: {address: {socket_address: {address: "127.0.0.1", port_value: %s}}}`+"\n", port)
	}
	old := endpoint(addresses[0])
	if strings.Count(config+"\n", old) != 1 {
		t.Fatalf("no endpoint %s:\n%s", old, config)
	}
	all := ""
	for _, a := range addresses {
		all += endpoint(a)
	}
	return strings.Replace(config+"\n", old, all, 1)
}

// timeKeys sends one request for each key, from several connections at once, and returns the sorted times.
func timeKeys(t *testing.T, envoy string, keys []string, workers int) []time.Duration {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	defer client.CloseIdleConnections()
	took := make([]time.Duration, len(keys))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(keys)); i = next.Add(1) - 1 {
				begin := time.Now()
				if a := send(client, envoy, keys[i]); a.status != http.StatusOK {
					t.Errorf("key %s: %d, %v", a.key, a.status, a.err)
				}
				took[i] = time.Since(begin).Round(10 * time.Microsecond)
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took
}
