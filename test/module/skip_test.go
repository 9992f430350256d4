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

	"github.com/keyward/keyward/internal/ops/loadtest"
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

// TestCostOfSkipping compares what Envoy spends on a request if it builds the rate limit filter for each request, and if only
// for those without a lease, in short turns, so that other load on the machine disturbs both alike. KEYWARD_COST is the
// number of rounds, each of 4 turns of 300 requests for each of the four Envoys.
func TestCostOfSkipping(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("KEYWARD_COST"))
	if rounds == 0 {
		t.Skip("set KEYWARD_COST to the number of rounds")
	}
	const turn, warm = 300, 30
	for _, leased := range []bool{true, false} {
		var sites [2]*site
		for i := range sites {
			p := listen(t, ordinary(64))
			sites[i] = start(t, newest, setup{socket: p.path, built: i == 1})
			l := p.link(0)
			sites[i].awaitLease(l)
			tokens := uint32(0)
			if leased {
				tokens = 1 << 30
			}
			l.segment.lend(0, tokens, 59*time.Minute, "app", "api_key=k")
		}
		var clients [2]*http.Client
		cost := func(i int) float64 {
			s := sites[i]
			if clients[i] == nil {
				clients[i] = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
			}
			send := func(n int) {
				for range n {
					req, _ := http.NewRequest(http.MethodGet, "http://"+s.envoy.Listener+"/", nil)
					req.Header.Set("x-key", "k")
					res, err := clients[i].Do(req)
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}
			send(warm)
			s.service.take()
			before := running(t, s.envoy.PID())
			send(turn)
			after := running(t, s.envoy.PID())
			s.service.take()
			return float64(after-before) / turn / 1000
		}
		var all [2][]float64
		var saved []float64
		for range rounds {
			a, b, c, d := cost(0), cost(1), cost(1), cost(0)
			all[0], all[1] = append(all[0], (a+d)/2), append(all[1], (b+c)/2)
			saved = append(saved, (b+c-a-d)/2)
		}
		t.Logf("leased %v, medians of %d rounds: %.1f us of Envoy's CPU time for a request, %.1f if the filter is always built; difference %.1f us, quartiles %.1f and %.1f", leased, rounds,
			loadtest.SpreadOf(all[0]).Median, loadtest.SpreadOf(all[1]).Median, loadtest.SpreadOf(saved).Median, quartile(saved, 1), quartile(saved, 3))
	}
}

// quartile returns the nth quartile of values.
func quartile(values []float64, n int) float64 {
	return slices.Sorted(slices.Values(values))[(len(values)-1)*n/4]
}
