package rlqs

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// conn is one connection to a listener, and so to one worker. It is for one goroutine.
type conn struct {
	url    string
	client *http.Client
	dials  *atomic.Int64
}

// dial returns n connections to a site. Their workers are Envoy's choice.
func (s *site) dial(n int) []*conn {
	conns := make([]*conn, n)
	for i := range conns {
		conns[i] = dial(s.addr)
		s.Cleanup(conns[i].client.CloseIdleConnections)
	}
	return conns
}

func dial(addr string) *conn {
	c := &conn{url: "http://" + addr + "/", dials: &atomic.Int64{}}
	c.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, DisableCompression: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c.dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	}}
	return c
}

// get sends one request of an id and returns the status, or 0 without an answer. An empty id is none.
func (c *conn) get(id string, more ...string) int {
	req, err := http.NewRequest(http.MethodGet, c.url, nil)
	if err != nil {
		panic(err)
	}
	if id != "" {
		req.Header.Set("x-key", id)
	}
	for i := 0; i+1 < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	res, err := c.client.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return res.StatusCode
}

// tally counts answers.
type tally struct{ admitted, refused, other atomic.Int64 }

func (t *tally) add(status int) {
	switch status {
	case http.StatusOK:
		t.admitted.Add(1)
	case http.StatusTooManyRequests:
		t.refused.Add(1)
	default:
		t.other.Add(1)
	}
}

// burst sends n requests of an id over the connections, each as fast as it is answered.
func burst(conns []*conn, id string, n int, more ...string) *tally {
	t := &tally{}
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				t.add(c.get(id, more...))
			}
		})
	}
	wg.Wait()
	return t
}

// crowd sends requests of an id over the connections until stop is called.
func crowd(conns []*conn, id string) (t *tally, stop func()) {
	t = &tally{}
	var ended atomic.Bool
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			for !ended.Load() {
				t.add(c.get(id))
			}
		})
	}
	return t, func() {
		ended.Store(true)
		wg.Wait()
	}
}

// hits sends n requests and returns how many were admitted. Any answer but 200 and 429 is an error.
func (s *site) hits(conns []*conn, id string, n int, more ...string) int {
	s.Helper()
	t := burst(conns, id, n, more...)
	if got := t.other.Load(); got > 0 {
		s.Fatalf("%d of %d requests were not answered by 200 or 429", got, n)
	}
	return int(t.admitted.Load())
}
