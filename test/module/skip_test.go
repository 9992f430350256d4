package module

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// running returns how long the threads of a process have run, in nanoseconds.
func running(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		n, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(n)
	}
	return sum
}

// costOf returns what Envoy spends on a request, in us, over some requests on one connection.
func (s *site) costOf(c *http.Client) float64 {
	const turn, warm = 300, 30
	send := func(n int) {
		for range n {
			req, _ := http.NewRequest(http.MethodGet, "http://"+s.envoy.Listener+"/", nil)
			req.Header.Set("x-key", "k")
			res, err := c.Do(req)
			if err != nil {
				s.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		s.service.take()
	}
	send(warm)
	before := running(s.T, s.envoy.PID())
	send(turn)
	return float64(running(s.T, s.envoy.PID())-before) / turn / 1000
}

// TestCostOfSkipping compares what Envoy spends on a request if it builds the rate limit filter for each request, and if only
// for those without a lease, in short turns, so that other load on the machine disturbs both alike. Processes of one
// configuration differ, so several pairs take part. KEYWARD_COST is the number of pairs.
func TestCostOfSkipping(t *testing.T) {
	pairs, _ := strconv.Atoi(os.Getenv("KEYWARD_COST"))
	if pairs == 0 {
		t.Skip("set KEYWARD_COST to the number of pairs of Envoys")
	}
	const rounds = 15
	for _, leased := range []bool{true, false} {
		var saved, cost []float64 // medians of the pairs
		for range pairs {
			var sites [2]*site
			var clients [2]*http.Client
			for i := range sites {
				p := listen(t, ordinary(64))
				sites[i] = start(t, newest, setup{socket: p.path, built: i == 1})
				clients[i] = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
				l := p.link(0)
				sites[i].awaitLease(l)
				tokens := uint32(0)
				if leased {
					tokens = 1 << 30
				}
				l.segment.lend(0, tokens, 59*time.Minute, "app", "api_key=k")
			}
			of := func(i int) float64 { return sites[i].costOf(clients[i]) }
			var all, differences []float64
			for range rounds {
				a, b, c, d := of(0), of(1), of(1), of(0)
				all, differences = append(all, a, d), append(differences, (b+c-a-d)/2)
			}
			saved, cost = append(saved, quartile(differences, 2)), append(cost, quartile(all, 2))
			for i := range sites {
				clients[i].CloseIdleConnections()
				if err := sites[i].envoy.Stop(20 * time.Second); err != nil {
					t.Error(err)
				}
			}
		}
		t.Logf("leased %v: %.1f us of Envoy's CPU time for a request; if the filter is always built, more by %.1f us (medians of %d pairs; those of the pairs: %.1f)",
			leased, quartile(cost, 2), quartile(saved, 2), pairs, saved)
	}
}

// quartile returns the nth quartile of values.
func quartile(values []float64, n int) float64 {
	return slices.Sorted(slices.Values(values))[(len(values)-1)*n/4]
}
