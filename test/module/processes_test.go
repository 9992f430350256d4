package module

import (
	"fmt"
	"io"
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

// costOf returns what Envoy spends on a request, in us, over some requests on so many connections.
func (s *site) costOf(c *http.Client, connections int) float64 {
	turn, warm := 1200/connections, 120/connections // requests of a connection
	send := func(n int) {
		var wg sync.WaitGroup
		for range connections {
			wg.Go(func() {
				for range n {
					s.request(c)
				}
			})
		}
		wg.Wait()
		s.service.take()
	}
	send(warm)
	before := running(s.T, s.envoy.PID())
	send(turn)
	return float64(running(s.T, s.envoy.PID())-before) / float64(turn*connections) / 1000
}

// request sends a request.
func (s *site) request(c *http.Client) {
	req, _ := http.NewRequest(http.MethodGet, "http://"+s.envoy.Listener+"/", nil)
	req.Header.Set("x-key", "k")
	res, err := c.Do(req)
	if err != nil {
		s.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
}

// variant is an Envoy of which TestCostOfProcesses starts several processes.
type variant struct {
	name   string
	site   release
	setup  setup
	leased bool // the key of the requests has a lease
}

func variants() []variant {
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
	if o.filters == nil {
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

// TestCostOfProcesses compares what Envoy spends on a request without a limit, with local_ratelimit, and with the module as filter
// and as matcher. Each variant has its turns, which are short, so that other load on the machine disturbs all alike. Processes of
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
	all := slices.DeleteFunc(variants(), func(v variant) bool { return v.name != "none" && !rowsOf.MatchString(v.name) })
	const rounds = 8
	added := make([][]float64, len(all)) // by variant, of its processes: more than without a limit
	for range processes {
		sites, clients := make([]*site, len(all)), make([]*http.Client, len(all))
		for i := range all {
			sites[i], clients[i] = all[i].start(t, connections)
		}
		cost := make([][]float64, len(all))
		for r := range rounds {
			for i := range all {
				i = (i + r) % len(all)
				if r%2 == 1 {
					i = len(all) - 1 - i
				}
				cost[i] = append(cost[i], sites[i].costOf(clients[i], connections))
			}
		}
		for i := range all {
			added[i] = append(added[i], quartile(cost[i], 1)-quartile(cost[0], 1))
			clients[i].CloseIdleConnections()
			if err := sites[i].envoy.Stop(20 * time.Second); err != nil {
				t.Error(err)
			}
		}
	}
	for i := range all {
		t.Logf("%-60s %5.1f us of Envoy's CPU time more than none for a request (mean of %d processes; quartiles %.1f, %.1f, %.1f)",
			all[i].name, mean(added[i]), processes, quartile(added[i], 1), quartile(added[i], 2), quartile(added[i], 3))
	}
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
