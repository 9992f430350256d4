package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/promtext"
)

// rawTerminal makes the terminal of out report single keys, if it is one.
func rawTerminal(out io.Writer, e *ending) (restore func(), raw bool) {
	if f, ok := out.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) || !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil, false
	}
	restore, err := keyboard(e, func(byte) {})
	return restore, err == nil
}

// envoyTraffic sends requests with one header to an Envoy at a steady rate, and counts the results.
type envoyTraffic struct {
	client  *http.Client
	url     string
	header  string
	perSecs int

	mu       sync.Mutex
	windows  map[int64]int   // admitted requests by the window in which they were both sent and answered
	times    []time.Duration // of the newest requests, a ring
	next     int             // in times
	sent     int
	admitted int
	denied   int
	failed   int
	why      string // the last one failed
}

func (x *envoyTraffic) prepare(listener, header string, rate int) {
	x.client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	x.url, x.header, x.perSecs, x.windows = "http://"+listener, header, rate, map[int64]int{}
}

// send sends requests until ctx ends, and waits for the last answer.
func (x *envoyTraffic) send(ctx context.Context) {
	defer x.client.CloseIdleConnections()
	var open sync.WaitGroup
	defer open.Wait()
	period := time.Second / time.Duration(x.perSecs)
	for next := time.Now(); pause(ctx, time.Until(next)); next = next.Add(period) {
		open.Go(func() { x.ask(context.WithoutCancel(ctx)) })
	}
}

// ask sends one request and counts the outcome.
func (x *envoyTraffic) ask(ctx context.Context) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, x.url, nil)
	if err != nil {
		return
	}
	req.Header.Set(x.header, "demo")
	began := time.Now()
	res, err := x.client.Do(req)
	status := 0
	if err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		status = res.StatusCode
	}
	x.count(began, time.Now(), status, err)
}

// timesKept is the number of durations that the median is of.
const timesKept = 500

func (x *envoyTraffic) count(began, ended time.Time, status int, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent++
	switch status {
	case http.StatusOK:
		x.admitted++
		if w := frugalIndex(began); w == frugalIndex(ended) {
			x.windows[w]++
		}
	case http.StatusTooManyRequests:
		x.denied++
	default:
		x.failed++
		x.why = fmt.Sprintf("status %d, %v", status, err)
	}
	if len(x.times) < timesKept {
		x.times = append(x.times, 0)
	}
	x.times[x.next] = ended.Sub(began)
	x.next = (x.next + 1) % timesKept
}

// frugalIndex returns the index of the window at a time.
func frugalIndex(at time.Time) int64 { return at.UnixNano() / int64(frugalWindow) }

// of returns the admitted requests of a window, and the median time of the newest requests.
func (x *envoyTraffic) of(window int64) (admitted int, median time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.times) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(x.times))
	return x.windows[window], sorted[len(sorted)/2]
}

func (s *frugalStage) draw(ctx context.Context, out io.Writer) {
	w := frugalIndex(time.Now())
	fmt.Fprintf(out, "\n  %-8s %7s   %-36s   %s\n", "", "", "WITHOUT CALLS", "WITH CALLS")
	fmt.Fprintf(out, "  %-8s %7s   %11s %11s %10s   %11s %11s %10s\n", "ENVOY", "SENT/s", "LAST WINDOW", "THIS WINDOW", "MEDIAN", "LAST WINDOW", "THIS WINDOW", "MEDIAN")
	var sums [4]int
	for i, e := range s.envoys {
		var n [4]int
		var medians [2]time.Duration
		for j, x := range []*envoyTraffic{&e.free, &e.calling} {
			n[2*j], _ = x.of(w - 1)
			n[2*j+1], medians[j] = x.of(w)
		}
		for j := range sums {
			sums[j] += n[j]
		}
		fmt.Fprintf(out, "  %-8s %7d   %11d %11d %10s   %11d %11d %10s\n", e.Name, frugalRates[i], n[0], n[1], micros(medians[0]), n[2], n[3], micros(medians[1]))
	}
	of := func(n int) string { return fmt.Sprintf("%d / %d", n, frugalLimit) }
	fmt.Fprintf(out, "  %-8s %7s   %11s %11s %10s   %11s %11s\n", "together", "", of(sums[0]), of(sums[1]), "", of(sums[2]), of(sums[3]))
	free, calls := s.messages(ctx)
	fmt.Fprintf(out, "  %-16s   %23.4f %10s   %23.4f\n\n  [q] quit\n", "messages/request", free, "", calls)
}

func micros(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

// messages returns how many messages between Envoys and sidecars a request has taken, without calls and with them. A call
// is one.
func (s *frugalStage) messages(ctx context.Context) (free, calls float64) {
	var reports, made float64
	for _, m := range s.lab.Sidecars {
		body, err := lab.Get(ctx, "http://"+m.Metrics+"/metrics")
		if err != nil {
			continue
		}
		if page, err := promtext.Parse(body); err == nil {
			reports += page.Sum("keyward_quota_reports_total") + page.Sum("keyward_quota_ack_seconds_count")
		}
	}
	var sent [2]float64
	for _, e := range s.envoys {
		for _, suffix := range []string{".ratelimit.ok", ".ratelimit.over_limit", ".ratelimit.error"} {
			n, _ := e.StatSum(ctx, suffix)
			made += n
		}
		for i, x := range []*envoyTraffic{&e.free, &e.calling} {
			x.mu.Lock()
			sent[i] += float64(x.sent)
			x.mu.Unlock()
		}
	}
	return reports / max(1, sent[0]), made / max(1, sent[1])
}

// verdict prints a summary. It returns an error if a window had more than the limit, requests failed, or calls were made for
// limits that Envoys spend.
func (s *frugalStage) verdict(out io.Writer) error {
	var most, admitted, denied, failed [2]int
	why := ""
	for i := range most {
		sums := map[int64]int{}
		for _, e := range s.envoys {
			x := []*envoyTraffic{&e.free, &e.calling}[i]
			x.mu.Lock()
			admitted[i], denied[i], failed[i] = admitted[i]+x.admitted, denied[i]+x.denied, failed[i]+x.failed
			why = cmp.Or(why, x.why)
			for w, n := range x.windows {
				sums[w] += n
			}
			x.mu.Unlock()
		}
		for _, n := range sums {
			most[i] = max(most[i], n)
		}
		fmt.Fprintf(out, "\r\n  %-14s %d requests admitted, %d denied, %d failed. The most of one window: %d of %d.\r\n",
			[]string{"without calls:", "with calls:"}[i], admitted[i], denied[i], failed[i], most[i], frugalLimit)
	}
	if max(most[0], most[1]) > frugalLimit || failed[0]+failed[1] > 0 {
		return fmt.Errorf("demo failed: %d requests failed (%s), and windows of %d had %d and %d", failed[0]+failed[1], why, frugalLimit, most[0], most[1])
	}
	return nil
}
