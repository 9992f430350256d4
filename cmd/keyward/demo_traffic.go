package main

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// demoKey is the traffic of one API key and its results.
type demoKey struct {
	name    string
	rate    int          // requests per second
	limit   int          // per second, by the rules; of monthKey per month
	extra   atomic.Int64 // additional requests per second
	allowed atomic.Int64
	denied  atomic.Int64
	failed  atomic.Int64
	down    *atomic.Bool // all sidecars are killed, so that no request can succeed; nil: never
	missed  atomic.Int64 // requests that failed meanwhile
}

// viralKey is the key that can be made hot.
const viralKey = "viral"

// monthKey is the key with a quota for a month.
const monthKey = "month-nina"

// window returns the length of the key's windows.
func (k *demoKey) window() time.Duration {
	if k.name == monthKey {
		return 30 * 24 * time.Hour
	}
	return time.Second
}

// most returns the number of requests that the key's windows from start to now admit.
func (k *demoKey) most(start, now time.Time) int64 {
	if k.name == monthKey {
		return int64(k.limit)
	}
	return windows(start, now) * int64(k.limit)
}

// over returns the number of requests admitted above the limit, over all windows.
func (k *demoKey) over(start, now time.Time) int64 {
	return max(0, k.allowed.Load()-k.most(start, now))
}

// demoKeys returns the keys of a dozen customers. Some of them exceed their limit.
func demoKeys() []*demoKey {
	var keys []*demoKey
	for _, k := range []struct {
		name        string
		rate, limit int
	}{
		{"alice", 3, 5}, {"bob", 4, 5}, {"carol", 8, 5}, {"dave", 2, 5}, {"erin", 25, 5}, {"frank", 5, 5},
		{"grace", 12, 5}, {"heidi", 1, 5}, {"gold-ivan", 18, 20}, {"gold-judy", 40, 20}, {"gold-mallory", 60, 20}, {"oscar", 9, 5}, {viralKey, 20, 200}, {monthKey, 4, 200},
	} {
		keys = append(keys, &demoKey{name: k.name, rate: k.rate, limit: k.limit})
	}
	return keys
}

// send sends the traffic of all keys until ctx ends, and waits for the last answer.
func send(ctx context.Context, envoy string, keys []*demoKey) {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for _, k := range keys {
		wg.Go(func() {
			for pause(ctx, time.Second/time.Duration(int64(k.rate)+k.extra.Load())) {
				wg.Go(func() { k.ask(client, envoy) })
			}
		})
	}
	wg.Wait()
}

// ask sends one request through Envoy and counts the outcome.
func (k *demoKey) ask(client *http.Client, envoy string) {
	down := k.down != nil && k.down.Load()
	fail := func() {
		if down || k.down != nil && k.down.Load() {
			k.missed.Add(1)
		} else {
			k.failed.Add(1)
		}
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+envoy+"/", nil)
	if err != nil {
		fail()
		return
	}
	req.Header.Set("x-api-key", k.name)
	res, err := client.Do(req)
	if err != nil {
		fail()
		return
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
		k.allowed.Add(1)
	case http.StatusTooManyRequests:
		k.denied.Add(1)
	default:
		fail()
	}
}
