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

	"github.com/keyward/keyward/internal/lab"
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

// requestCost is what a request costs, in us.
type requestCost struct {
	cpu     float64 // of Envoy
	p50     float64 // of the client's latencies
	refused int     // requests without a 200
}

// costOf measures some requests on so many connections.
func (s *site) costOf(c *http.Client, connections int) requestCost {
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
					status := send(c, "http://"+s.envoy.Listener+"/", "x-key", "k")
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
}

// variants returns all variants. Some use a sidecar's rate limit service, of which the key of quotas is "quota".
func variants(service string) []variant {
	filter := func(name, fields string) []string {
		return []string{fmt.Sprintf("{name: envoy.filters.http.%s, typed_config: %s}", name, fields)}
	}
	local := filter("local_ratelimit", lab.TypedConfig("envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
		"stat_prefix: local, token_bucket: {max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 1s}, filter_enabled: {default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 100}}"))
	nothing := filter("header_mutation", lab.TypedConfig("envoy.extensions.filters.http.header_mutation.v3.HeaderMutation", "mutations: {}"))
	all := []variant{
		{name: "none", site: newest, setup: setup{filters: []string{}}},
		{name: "a filter that does nothing", site: newest, setup: setup{filters: nothing}},
		{name: "local_ratelimit", site: newest, setup: setup{filters: local}},
		{name: "calls", site: newest, setup: setup{bare: true, service: service}},
		{name: "RLQS", site: newest, setup: setup{filters: []string{quotaFilter()}, service: service}},
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

// TestCostOfProcesses compares what Envoy spends on a request without a limit, with local_ratelimit, calls, RLQS, and with the module as
// filter and as matcher, and how long requests take. Each variant has its turns, which are short, so that other load on the machine disturbs all alike. Processes of
// one configuration differ by as much as the variants do, so several take part. KEYWARD_COST is the number of processes of each
// variant, KEYWARD_COST_CONNECTIONS (1) that of connections, and KEYWARD_COST_ROWS a regular expression of the variants; without
// it, all take part.
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
	const rounds = 8
	cpu, p50, refused := make([][]float64, len(all)), make([][]float64, len(all)), make([]int, len(all)) // by variant, of its processes
	for range processes {
		sites, clients := make([]*site, len(all)), make([]*http.Client, len(all))
		for i := range all {
			sites[i], clients[i] = all[i].start(t, connections)
		}
		costs := make([][]requestCost, len(all))
		for r := range rounds {
			for i := range all {
				i = (i + r) % len(all)
				if r%2 == 1 {
					i = len(all) - 1 - i
				}
				costs[i] = append(costs[i], sites[i].costOf(clients[i], connections))
			}
		}
		for i := range all {
			for _, c := range costs[i] {
				refused[i] += c.refused
			}
			cpu[i] = append(cpu[i], over(costs[i], costs[0], func(c requestCost) float64 { return c.cpu }))
			p50[i] = append(p50[i], over(costs[i], costs[0], func(c requestCost) float64 { return c.p50 }))
			clients[i].CloseIdleConnections()
			if err := sites[i].envoy.Stop(20 * time.Second); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("us more than without a limit for a request, means of %d processes (quartiles of the CPU time), %d connections", processes, connections)
	for i := range all {
		t.Logf("%-50s Envoy's CPU time %6.1f (%.1f, %.1f, %.1f), p50 %6.1f, refused %d", all[i].name, mean(cpu[i]), quartile(cpu[i], 1), quartile(cpu[i], 2), quartile(cpu[i], 3),
			mean(p50[i]), refused[i])
	}
}

// over returns how much more a process costs than another one: the difference of the first quartiles of their turns.
func over(a, b []requestCost, figure func(requestCost) float64) float64 {
	first := func(costs []requestCost) float64 {
		var all []float64
		for _, c := range costs {
			all = append(all, figure(c))
		}
		return quartile(all, 1)
	}
	return first(a) - first(b)
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
