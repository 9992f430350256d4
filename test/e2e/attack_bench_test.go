package e2e

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// attacks are what one stranger can do again and again.
var attacks = map[string]func(*testing.T, string){
	"bombs": headerBombs, "continuations": continuations, "resets": rapidResets, "messages": endlessMessages,
	"pings": pings, "prefaces": halfPrefaces, "idle": idleConnections, "keys": longKeys,
	"small-bombs": smallBombs, "gzip": gzipBombs,
}

// TestAttacker is no test: it is the process that BenchmarkUnderAttack starts.
func TestAttacker(t *testing.T) {
	name, addr, ok := strings.Cut(os.Getenv("KEYWARD_ATTACK"), " ")
	if !ok {
		return
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); { // unless it is ended before
		t.Run("at once", func(t *testing.T) {
			for range 4 {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					attacks[name](t, addr)
				})
			}
		})
	}
}

// BenchmarkUnderAttack is the waiting time of an honest client that asks 500 times a second, before and while a stranger attacks on the
// same port. The attacker has only idle processor time, as if it were on another machine. What it costs all the same to have it on
// this one is seen when it attacks another sidecar. The figures are the 99th percentile.
func BenchmarkUnderAttack(b *testing.B) {
	s, other := lone(b), lone(b)
	client := dial(b, s.RLS, nil)
	ask(b, client, request("app", 1, "k", "honest"))
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		b.Run(name, func(b *testing.B) {
			own := paced(b, client)
			stop := attack(b, name, other.RLS)
			elsewhere := paced(b, client)
			stop()
			stop = attack(b, name, s.RLS)
			took := paced(b, client)
			stop()
			rss, _ := s.RSS()
			reportWaits(b, own, elsewhere, took, rss)
		})
	}
}

// lone starts a sidecar that is a cluster of its own.
func lone(b *testing.B) *lab.Sidecar {
	l := newLab(b, lab.Options{Rules: map[string]string{"app.yaml": memoryRules}, Expect: 1})
	start(b, l, "pod-a")
	return l.Sidecars[0]
}

// smallBombs are many header blocks that unpack to much, each of them small.
func smallBombs(t *testing.T, addr string) {
	for range 20 {
		headerBomb(t, addr, 1500)
	}
}

// attack starts an attacker, and returns what ends it.
func attack(b *testing.B, name, addr string) func() {
	ctx, stop := context.WithCancel(b.Context())
	c := exec.CommandContext(ctx, "chrt", "-i", "0", os.Args[0], "-test.run=^TestAttacker$")
	c.Env = append(os.Environ(), "KEYWARD_ATTACK="+name+" "+addr)
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	return func() {
		stop()
		_ = c.Wait() // it is ended by the signal
	}
}

// paced asks 500 times a second for 6 seconds, and returns how long each call took from when it was due.
func paced(b *testing.B, client rlsv3.RateLimitServiceClient) (took []time.Duration) {
	const every = 2 * time.Millisecond
	due := time.Now()
	for range 3000 {
		due = due.Add(every)
		time.Sleep(time.Until(due))
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		_, err := client.ShouldRateLimit(ctx, request("app", 1, "k", "honest"))
		cancel()
		if err != nil {
			b.Error(err)
		}
		took = append(took, time.Since(due))
	}
	slices.Sort(took)
	return took
}

func reportWaits(b *testing.B, own, elsewhere, took []time.Duration, rss int64) {
	p99 := func(all []time.Duration) float64 { return float64(all[len(all)*99/100].Microseconds()) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(p99(own), "us-alone")
	b.ReportMetric(p99(elsewhere), "us-elsewhere")
	b.ReportMetric(p99(took), "us-attacked")
	b.ReportMetric(p99(took)/p99(own), "x-alone")
	b.ReportMetric(p99(took)/p99(elsewhere), "x-elsewhere")
	b.ReportMetric(float64(rss>>20), "MiB")
}
