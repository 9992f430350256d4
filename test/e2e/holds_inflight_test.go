package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const inFlightRules = `
domain: llm
descriptors:
- key: streams
  rate_limit: {unit: minute, requests_per_unit: 5000}
  metadata: {keyward: {algorithm: in_flight, window: 1h}}
`

// openStreams opens n streams of a tenant through an Envoy, which end with the gate of the model server or with the
// context.
func openStreams(t *testing.T, ctx context.Context, client *http.Client, envoy, tenant string, n int) {
	t.Helper()
	for range n {
		p := &prompt{tenant: tenant, maxTokens: 10, headers: map[string]string{usageHeader: "1", holdHeader: "0"}}
		res, err := p.start(ctx, client, envoy)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res, err)
		}
		go func() {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}()
	}
}

// slots returns the requests in flight of a tenant, as a running member reads them from the owner.
func slots(ctx context.Context, l *lab.Lab, tenant string) (uint64, string, error) {
	for _, s := range l.Sidecars {
		if s.Running() {
			c, err := lab.CounterOf(ctx, s.Metrics, "llm", "streams", tenant)
			if err == nil && c.Authority != "full" {
				err = fmt.Errorf("%+v", c)
			}
			return c.Count, c.Owner, err
		}
	}
	return 0, "", fmt.Errorf("no member runs")
}

func awaitSlots(t *testing.T, l *lab.Lab, tenant string, want uint64, within time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var last error
	if lab.Await(ctx, "slots", func(ctx context.Context) error {
		n, _, err := slots(ctx, l, tenant)
		if err == nil && n != want {
			err = fmt.Errorf("%d slots", n)
		}
		if ctx.Err() == nil {
			last = err
		}
		return err
	}) != nil {
		t.Errorf("%s: want %d slots within %s: %v", tenant, want, within, last)
	}
	return time.Since(began)
}

// TestSlotsOfKilledEnvoy kills one of two Envoys that have 1,000 requests in flight each: its slots come back within 10 s,
// and none of those of the other. Then the owner is killed, and after its return the member that owns the key
// since: the other Envoy keeps its slots until its requests end.
func TestSlotsOfKilledEnvoy(t *testing.T) {
	const each = 1000
	l := newLab(t, lab.Options{Rules: map[string]string{"llm.yaml": inFlightRules}, Expect: 4})
	members := names(4)
	start(t, l, members...)
	xds := startXDS(t, l, members)
	m := startLLM(t)
	client := loadClient(t)
	// Both Envoys have the machine's name: what distinguishes them here is the caller that they send.
	envoys := make([]*lab.Envoy, 2)
	for i := range envoys {
		name := fmt.Sprintf("envoy-%d", i)
		envoys[i] = holdEnvoyOf(t, l, xds, m.addr, name, len(members), strings.NewReplacer(`"%HOSTNAME%"`, name))
	}
	for _, e := range envoys {
		openStreams(t, t.Context(), client, e.Listener, "all", each)
	}
	awaitSlots(t, l, "all", 2*each, 10*time.Second)
	envoys[0].Kill()
	t.Logf("slots of a killed Envoy came back in %s", awaitSlots(t, l, "all", each, 10*time.Second).Round(100*time.Millisecond))

	for range 2 {
		_, owner, err := slots(t.Context(), l, "all")
		if err != nil {
			t.Fatal(err)
		}
		victim := l.Sidecars[slices.IndexFunc(l.Sidecars, func(s *lab.Sidecar) bool { return s.Name == owner })]
		awaitReplicas(t, victim)
		victim.Kill()
		awaitRing(t, l, slices.DeleteFunc(slices.Clone(members), func(n string) bool { return n == owner })...)
		awaitSlots(t, l, "all", each, 20*time.Second)
		if err := l.Restart(victim); err != nil {
			t.Fatal(err)
		}
		awaitRing(t, l, members...)
		awaitSlots(t, l, "all", each, 20*time.Second)
	}
	openStreams(t, t.Context(), client, envoys[1].Listener, "other", 1) // the Envoy still works
	close(m.gates[0])
	awaitSlots(t, l, "all", 0, 20*time.Second)
	awaitSlots(t, l, "other", 0, 20*time.Second)
}
