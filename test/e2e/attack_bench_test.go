package e2e

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/lab"
)

// attacks are what one stranger can do again and again.
var attacks = map[string]func(*testing.T, string){
	"bombs": headerBombs, "continuations": continuations, "resets": rapidResets, "messages": endlessMessages,
	"pings": pings, "prefaces": halfPrefaces, "idle": idleConnections, "keys": longKeys,
}

// TestAttacker is no test: it is the process that BenchmarkUnderAttack starts.
func TestAttacker(t *testing.T) {
	name, addr, ok := strings.Cut(os.Getenv("KEYWARD_ATTACK"), " ")
	if !ok {
		return
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); { // unless it is ended before
		for range 4 {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				attacks[name](t, addr)
			})
		}
	}
}

// BenchmarkUnderAttack is the waiting time of an honest client that asks 500 times a second, by itself and while a stranger attacks on the
// same port. The attacker has the processor time that nobody else wants, as if it were on another machine.
func BenchmarkUnderAttack(b *testing.B) {
	for _, kind := range []string{"lean", "grpc"} {
		l := newLab(b, lab.Options{Rules: map[string]string{"app.yaml": memoryRules}, Expect: 1, Args: []string{"--rls-door", kind}})
		start(b, l, "pod-a")
		s := l.Sidecars[0]
		client := dial(b, s.RLS, nil)
		ask(b, client, request("app", 1, "k", "honest"))
		own := paced(b, client)
		b.Run(kind+"/alone", func(b *testing.B) { reportWaits(b, own, own, 0) })
		for _, name := range slices.Sorted(mapKeys(attacks)) {
			b.Run(kind+"/"+name, func(b *testing.B) {
				stop := attack(b, name, s.RLS)
				took := paced(b, client)
				stop()
				rss, _ := s.RSS()
				reportWaits(b, took, own, rss)
			})
		}
	}
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
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

func reportWaits(b *testing.B, took, own []time.Duration, rss int64) {
	at := func(all []time.Duration, p float64) float64 {
		return float64(all[int(float64(len(all))*p)].Microseconds())
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(at(took, 0.5), "us-p50")
	b.ReportMetric(at(took, 0.99), "us-p99")
	b.ReportMetric(at(took, 0.999), "us-p999")
	b.ReportMetric(at(took, 0.99)/at(own, 0.99), "x-own-p99")
	b.ReportMetric(float64(rss>>20), "MiB")
}
