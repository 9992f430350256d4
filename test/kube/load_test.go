package kube

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// limit is the limit of each key in testdata/values.yaml.
const limit = 100

// workers is how many clients there are.
const workers = 8

// load is clients inside the cluster's network that send requests with keys to a Service at a steady pace.
type load struct {
	url    string
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu       sync.Mutex
	keys     []string       // the newest last; guarded by mu
	admitted map[string]int // by key; guarded by mu
	refused  map[string]int // by key; guarded by mu
	early    int            // refused before the limit could have been reached; guarded by mu
	wrong    []string       // all that was neither admitted nor refused; guarded by mu
	slowest  time.Duration  // guarded by mu
}

// startLoad sends rate requests a second. Half of the clients keep their connections and leave when Envoy asks them to, the others open
// one for each request, for which kube-proxy chooses a pod.
func startLoad(t *testing.T, url string, rate int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{url: url, cancel: cancel, admitted: map[string]int{}, refused: map[string]int{}}
	for i := range workers {
		l.done.Go(func() {
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: i%2 == 0}}
			defer client.CloseIdleConnections()
			tick := time.NewTicker(time.Second * workers / time.Duration(rate))
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				if key := l.choose(); key != "" {
					l.send(client, key)
				}
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// begin adds keys that were not used before; most requests carry one of the newest.
func (l *load) begin(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range 10 {
		l.keys = append(l.keys, fmt.Sprintf("%s-%d", name, i))
	}
}

func (l *load) choose() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n := len(l.keys); {
	case n == 0:
		return ""
	case rand.IntN(4) == 0:
		return l.keys[rand.IntN(n)]
	default:
		return l.keys[n-1-rand.IntN(10)]
	}
}

func (l *load) send(client *http.Client, key string) {
	req, err := http.NewRequest(http.MethodGet, l.url, nil)
	if err != nil {
		panic(err)
	}
	req.Header.Set("x-api-key", key)
	begin := time.Now()
	res, err := client.Do(req)
	status := 0
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		status = res.StatusCode
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, time.Since(begin))
	switch {
	case err == nil && status == http.StatusOK:
		l.admitted[key]++
	case err == nil && status == http.StatusTooManyRequests:
		l.refused[key]++
		if l.admitted[key] < limit-workers { // each of the others may have an answer under way
			l.early++
		}
	default:
		l.wrong = append(l.wrong, fmt.Sprintf("%s %s: status %d, %v", begin.UTC().Format(time.StampMilli), key, status, err))
	}
}

// finish sends every key until it is refused, also one that was refused before.
func (l *load) finish(t testing.TB) {
	t.Helper()
	l.stop()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for _, key := range l.keys {
		for n, before := 0, l.refused[key]; l.refused[key] == before; n++ {
			if n > 2*limit {
				t.Errorf("%s: never refused, %d admitted", key, l.admitted[key])
				break
			}
			l.send(client, key)
		}
	}
}

// audit wants every request answered by 200 or 429, and each key admitted at most its limit and bound. It returns how many hits of the limits
// are missing.
func (l *load) audit(t testing.TB, bound int) (missing int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	admitted, refused, least, most := 0, 0, limit, limit
	for _, key := range l.keys {
		n := l.admitted[key]
		admitted, refused, missing = admitted+n, refused+l.refused[key], missing+max(0, limit-n)
		least, most = min(least, n), max(most, n)
		if n > limit+bound {
			t.Errorf("%s: %d admitted of %d, bound %d", key, n, limit, bound)
		}
	}
	t.Logf("%d keys of %d each: %d admitted, between %d and %d a key; %d refused, of these %d early; %d lost; the slowest answer took %s",
		len(l.keys), limit, admitted, least, most, refused, l.early, len(l.wrong), l.slowest.Round(time.Millisecond))
	for _, w := range l.wrong[:min(5, len(l.wrong))] {
		t.Errorf("lost: %s", w)
	}
	if len(l.wrong) > 5 {
		t.Errorf("and %d more", len(l.wrong)-5)
	}
	return missing
}

// exact wants every key admitted exactly its limit. What Envoys asked again because an answer was late may have been counted twice.
func exact(t testing.TB, l *load, e *envoys, seen int) {
	t.Helper()
	missing, retries := l.audit(t, 0), e.audit(t, seen)
	if missing > retries {
		t.Errorf("%d hits of the limits are missing, Envoys asked again %d times", missing, retries)
	}
	if l.early > 0 {
		t.Errorf("%d requests were refused though their limits were not reached", l.early)
	}
}
