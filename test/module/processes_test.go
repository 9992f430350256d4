package module

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// requestCost describes the cost of a request.
type requestCost struct {
	cpu     float64 // of Envoy, in us
	p50     float64 // of the client's latencies, in us
	refused int     // requests without a 200
}

// costOf measures some requests for a key on so many connections.
func (s *site) costOf(c *http.Client, key string, connections int) requestCost {
	turn, warm := 1200/connections, 120/connections // requests of a connection
	var mu sync.Mutex
	var times []float64
	var refused int
	round := func(n int) {
		times, refused = times[:0], 0
		var wg sync.WaitGroup
		for range connections {
			wg.Go(func() {
				for range n {
					begin := time.Now()
					status := send(c, "http://"+s.envoy.Listener+"/", "x-key", key)
					took := time.Since(begin)
					mu.Lock()
					times = append(times, took.Seconds()*1e6)
					if status != http.StatusOK {
						refused++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		s.service.take()
	}
	round(warm)
	before := running(s.T, s.envoy.PID())
	round(turn)
	cpu := float64(running(s.T, s.envoy.PID())-before) / float64(turn*connections) / 1000
	return requestCost{cpu, quartile(times, 2), refused}
}

// variant is an Envoy of which TestCostOfProcesses starts several processes.
type variant struct {
	name   string
	site   release
	setup  setup
	leased bool // the key of the requests has a lease
	fresh  bool // each process has a key of its own: what an Envoy that ended had of a limit stays charged
}

// variants returns all variants. Some use a sidecar's rate limit service, of which the key of quotas is "quota".
func variants(service string) []variant {
	all := []variant{
		{name: "none", site: newest, setup: setup{filters: []string{}}},
		{name: "a filter that does nothing", site: newest, setup: setup{filters: []string{idleFilter()}}},
		{name: "local_ratelimit", site: newest, setup: setup{filters: []string{localFilter()}}},
		{name: "calls", site: newest, setup: setup{bare: true, service: service}},
		{name: "RLQS", site: newest, setup: setup{filters: []string{quotaFilter()}, service: service}, fresh: true},
	}
	for _, as := range []struct {
		name string
		release
	}{{"filter", newest}, {"matcher", newest.asMatcher()}} {
		for _, leased := range []bool{true, false} {
			for _, built := range []bool{false, true} {
				name := "module as " + as.name
				if !leased {
					name += ", no lease"
				}
				if built {
					name += ", rate limit filter always built"
				}
				all = append(all, variant{name: name, site: as.release, setup: setup{built: built}, leased: leased})
			}
		}
	}
	return all
}

// start starts a process of the variant and a client.
func (v *variant) start(t *testing.T, connections int) (*site, *http.Client) {
	p := listen(t, ordinary(64))
	o := v.setup
	o.socket = p.path
	s := start(t, v.site, o)
	if o.filters == nil && !o.bare {
		l := p.link(0)
		s.awaitLease(l)
		tokens := uint32(0)
		if v.leased {
			tokens = 1 << 30
		}
		l.segment.lend(0, tokens, 59*time.Minute, "app", "api_key=k")
	}
	return s, &http.Client{Transport: &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}}
}

// added describes how much more requests of a variant cost than those without a limit, by process.
type added struct {
	cpu, p50 []float64 // us
	times    []float64 // p50, relative to that without a limit
	refused  int
}

// add adds a process, whose turns were like those of the process without a limit.
func (a *added) add(turns, none []requestCost) {
	least := func(turns []requestCost, figure func(requestCost) float64) float64 {
		var all []float64
		for _, c := range turns {
			all = append(all, figure(c))
		}
		return quartile(all, 1)
	}
	cpu, p50 := func(c requestCost) float64 { return c.cpu }, func(c requestCost) float64 { return c.p50 }
	a.cpu = append(a.cpu, least(turns, cpu)-least(none, cpu))
	a.p50 = append(a.p50, least(turns, p50)-least(none, p50))
	a.times = append(a.times, least(turns, p50)/least(none, p50))
	for _, c := range turns {
		a.refused += c.refused
	}
}

// TestCostOfProcesses compares what Envoy spends on a request without a limit, with local_ratelimit, calls, RLQS, and with the module
// as filter and as matcher, and how long requests take. Each variant has its turns, which are short, so that other load on the
// machine disturbs all alike. Processes of one configuration differ by as much as the variants do, so several take part.
// KEYWARD_COST is the number of processes of each variant, KEYWARD_COST_CONNECTIONS (1) that of connections, and KEYWARD_COST_ROWS
// a regular expression of the variants; without it, all take part.
func TestCostOfProcesses(t *testing.T) {
	processes, _ := strconv.Atoi(os.Getenv("KEYWARD_COST"))
	if processes == 0 {
		t.Skip("set KEYWARD_COST to the number of processes of each variant")
	}
	connections, _ := strconv.Atoi(os.Getenv("KEYWARD_COST_CONNECTIONS"))
	connections = max(1, connections)
	rowsOf := regexp.MustCompile(os.Getenv("KEYWARD_COST_ROWS"))
	f := startSidecars(t, programs(t), newest, 1, costRules)
	all := slices.DeleteFunc(variants(f.pods[0].sidecar.RLS), func(v variant) bool { return v.name != "none" && !rowsOf.MatchString(v.name) })
	sums := make([]added, len(all))
	for range processes {
		turns := takeTurns(t, all, connections)
		for i := range all {
			sums[i].add(turns[i], turns[0])
		}
	}
	t.Logf("more than without a limit, means of %d processes, with %d connections (quartiles of the CPU time)", processes, connections)
	for i, x := range sums {
		t.Logf("%-50s Envoy's CPU time %6.1f us (%.1f, %.1f, %.1f), p50 %6.1f us, %.2f times; refused %d", all[i].name, mean(x.cpu),
			quartile(x.cpu, 1), quartile(x.cpu, 2), quartile(x.cpu, 3), mean(x.p50), mean(x.times), x.refused)
	}
}

// takeTurns starts a process of each variant, and returns what requests cost in their turns.
func takeTurns(t *testing.T, all []variant, connections int) [][]requestCost {
	const rounds = 8
	sites, clients, turns := make([]*site, len(all)), make([]*http.Client, len(all)), make([][]requestCost, len(all))
	for i := range all {
		sites[i], clients[i] = all[i].start(t, connections)
	}
	for r := range rounds {
		for i := range all {
			i = (i + r) % len(all)
			if r%2 == 1 {
				i = len(all) - 1 - i
			}
			key := "k"
			if all[i].fresh {
				key = sites[i].envoy.Listener
			}
			turns[i] = append(turns[i], sites[i].costOf(clients[i], key, connections))
		}
	}
	for i := range all {
		clients[i].CloseIdleConnections()
		if err := sites[i].envoy.Stop(20 * time.Second); err != nil {
			t.Error(err)
		}
	}
	return turns
}

// mean returns the mean of values.
func mean(values []float64) (sum float64) {
	for _, x := range values {
		sum += x / float64(len(values))
	}
	return sum
}

// quartile returns the nth quartile of values.
func quartile(values []float64, n int) float64 {
	return slices.Sorted(slices.Values(values))[(len(values)-1)*n/4]
}
