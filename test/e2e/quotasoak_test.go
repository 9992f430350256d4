package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// link carries the connections of one Envoy to its sidecar, so that they can be cut.
type link struct {
	ln    net.Listener
	to    func() string
	mu    sync.Mutex
	open  map[net.Conn]bool
	stall sync.RWMutex // held while nothing is carried
}

func newLink(t *testing.T, to func() string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{ln: ln, to: to, open: map[net.Conn]bool{}}
	t.Cleanup(func() {
		ln.Close()
		k.reset()
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go k.carry(c)
		}
	}()
	return k
}

// carry copies between c and the sidecar until one of them ends.
func (k *link) carry(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", k.to())
	if err != nil {
		return
	}
	defer s.Close()
	k.mu.Lock()
	k.open[c], k.open[s] = true, true
	k.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
		both.Go(func() {
			b := make([]byte, 32<<10)
			for {
				n, err := way[0].Read(b)
				k.stall.RLock()
				_, failed := way[1].Write(b[:n])
				k.stall.RUnlock()
				if err != nil || failed != nil {
					c.Close()
					s.Close()
					return
				}
			}
		})
	}
	both.Wait()
	k.mu.Lock()
	delete(k.open, c)
	delete(k.open, s)
	k.mu.Unlock()
}

// reset closes all connections.
func (k *link) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.open {
		c.Close()
	}
}

// cut carries nothing for some time, and then closes all connections.
func (k *link) cut(d time.Duration) {
	k.stall.Lock()
	time.Sleep(d)
	k.reset()
	k.stall.Unlock()
}

// soakLoad sends requests for one key through an Envoy. It counts by window those that were sent and answered in one window:
// of the others it is not certain in which one they were admitted.
type soakLoad struct {
	sent, unsure, failed atomic.Int64
	mu                   sync.Mutex
	admitted             map[int64]int64
}

func (x *soakLoad) run(ctx context.Context, envoy string, perSecond int) {
	sendSteadily(ctx, envoy, "hot", perSecond, 8, func(sent, at time.Time, status int) {
		x.sent.Add(1)
		before, after := sent.UnixNano()/int64(quotaWindow), at.UnixNano()/int64(quotaWindow)
		switch {
		case status == 429:
		case status != 200:
			x.failed.Add(1)
		case before != after:
			x.unsure.Add(1)
		default:
			x.mu.Lock()
			x.admitted[after]++
			x.mu.Unlock()
		}
	})
}

// soakEnvoys returns the Envoys of the soak: the releases that are tried, or three times the one of the other tests.
func soakEnvoys(t *testing.T) (paths []string) {
	for _, name := range []string{"ENVOY_1_36", "ENVOY_1_38"} {
		if p := os.Getenv(name); p != "" {
			paths = append(paths, p)
		}
	}
	for len(paths) < 3 {
		paths = append(paths, envoyBinary(t))
	}
	return paths
}

// TestQuotaSoak has three Envoys, of different releases where these are installed, spend one limit for KEYWARD_QUOTA_SOAK,
// at 10:1:1. Meanwhile streams are closed and cut, sidecars and the key's owner killed, and Envoys stopped. No window
// exceeds the limit.
func TestQuotaSoak(t *testing.T) {
	text := os.Getenv("KEYWARD_QUOTA_SOAK")
	if text == "" {
		t.Skip("`make deep` runs it; KEYWARD_QUOTA_SOAK is its length, such as 60s")
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KEYWARD_QUOTA_SOAK: %v", err)
	}
	l := newLab(t, lab.Options{Insecure: true, Rules: map[string]string{"app.yaml": quotaRules}, Env: []string{"LOG_LEVEL=error"}})
	start(t, l, names(3)...)
	up := startUpstream(t)
	var envoys []*lab.Envoy
	var links []*link
	for i, path := range soakEnvoys(t) {
		k := newLink(t, func() string { return l.Sidecars[i].RLS })
		links = append(links, k)
		s := *l.Sidecars[i]
		s.RLS = k.ln.Addr().String()
		envoys = append(envoys, rlqsEnvoy(t, l, fmt.Sprint("envoy-", i), &s, up.addr, path))
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var loads [3]soakLoad
	var wg sync.WaitGroup
	for i, e := range envoys {
		loads[i].admitted = map[int64]int64{}
		wg.Go(func() { loads[i].run(ctx, e.Listener, []int{200, 20, 20}[i]) })
	}
	hurt, pushes := soakFaults(ctx, t, l, envoys, links)
	wg.Wait()
	soakVerdict(t, loads[:], hurt)
	hits := int64(0)
	for _, s := range l.Sidecars {
		pushes += pushesOf(t, s)
	}
	for i := range loads {
		hits += loads[i].sent.Load()
	}
	reports := 3 * length.Seconds() / 5
	t.Logf("%d requests, %d responses, about %.0f reports: %.4f messages a request", hits, pushes, reports,
		(float64(pushes)+reports)/float64(hits))
}

// pushesOf returns how many responses Envoys have acknowledged to a sidecar since it started.
func pushesOf(t *testing.T, s *lab.Sidecar) (n uint64) {
	for _, m := range metrics(t, s.Metrics)["keyward_quota_ack_seconds"].GetMetric() {
		n += m.GetHistogram().GetSampleCount()
	}
	return n
}

// soakFaults makes faults, one after the other, until ctx ends. It returns the windows that they touched, and the responses
// of sidecars that were killed.
func soakFaults(ctx context.Context, t *testing.T, l *lab.Lab, envoys []*lab.Envoy, links []*link) (hurt map[int64]string, pushes uint64) {
	hurt = map[int64]string{}
	kill := func(s *lab.Sidecar) error {
		pushes += pushesOf(t, s)
		s.Kill()
		if err := l.Restart(s); err != nil {
			return err
		}
		awaitRing(t, l, names(3)...)
		return nil
	}
	faults := []struct {
		name string
		do   func() error
	}{
		{"reconnect", func() error { links[rand.IntN(3)].reset(); return nil }},
		{"cut", func() error { links[rand.IntN(3)].cut(time.Duration(1+rand.IntN(7)) * time.Second); return nil }},
		{"Envoy stopped", func() error {
			e := envoys[rand.IntN(3)]
			if err := e.Pause(); err != nil {
				return err
			}
			time.Sleep(time.Duration(1+rand.IntN(6)) * time.Second)
			return e.Signal(syscall.SIGCONT)
		}},
		{"owner killed", func() error {
			name := owners(t, l, names(3), []string{"hot"})["hot"]
			for _, s := range l.Sidecars {
				if s.Name == name {
					return kill(s)
				}
			}
			return errors.New("no sidecar is called " + name)
		}},
		{"sidecar killed", func() error { return kill(l.Sidecars[rand.IntN(3)]) }},
	}
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return hurt, pushes
		case <-time.After(time.Duration(6000+rand.IntN(8000)) * time.Millisecond):
		}
		if round%8 > 4 { // a while without faults
			continue
		}
		f, from := faults[round%8], time.Now().UnixNano()/int64(quotaWindow)
		if err := f.do(); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		for w := from; w <= time.Now().UnixNano()/int64(quotaWindow)+2; w++ {
			hurt[w] = strings.TrimPrefix(hurt[w]+", "+f.name, ", ")
		}
	}
}

// soakVerdict checks that no window exceeds the limit, and logs how much of it was used.
func soakVerdict(t *testing.T, loads []soakLoad, hurt map[int64]string) {
	t.Helper()
	all := map[int64]int64{}
	for i := range loads {
		x := &loads[i]
		t.Logf("envoy %d: %d sent, %d failed, %d admitted at ends of windows", i, x.sent.Load(), x.failed.Load(), x.unsure.Load())
		for w, n := range x.admitted {
			all[w] += n
		}
	}
	first, last := int64(1<<62), int64(0)
	for w := range all {
		first, last = min(first, w), max(last, w)
	}
	var calm, touched, nCalm, nTouched int64
	worst := int64(quotaLimit)
	for w := first; w <= last; w++ {
		if all[w] > quotaLimit {
			t.Errorf("window %d: %d admitted, limit %d: %s", w, all[w], quotaLimit, hurt[w])
		}
		switch {
		case w < first+3 || w == last: // demands are not known, or it is not complete
		case hurt[w] == "":
			calm, nCalm, worst = calm+all[w], nCalm+1, min(worst, all[w])
		default:
			touched, nTouched = touched+all[w], nTouched+1
		}
	}
	t.Logf("windows without faults: %d, %.2f %% used, worst %.2f %%", nCalm, share(calm, nCalm), share(worst, 1))
	t.Logf("windows with faults: %d, %.2f %% used", nTouched, share(touched, nTouched))
}

func share(admitted, windows int64) float64 {
	return 100 * float64(admitted) / float64(max(1, windows)*quotaLimit)
}
