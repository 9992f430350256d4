package admin

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// largePage serves about 4 MB of metrics.
func largePage(t *testing.T) (addr string, refused, open *atomic.Int64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	for _, name := range "abcdefgh" {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "keyward_x" + string(name), Help: strings.Repeat("h", 512<<10)}, func() float64 { return 7 }))
	}
	refused, open = new(atomic.Int64), new(atomic.Int64)
	srv := Server(Options{
		Gatherer: reg, Ready: func() error { return nil }, Cluster: func() api.ClusterStatus { return api.ClusterStatus{} },
		Counters: func(string, []config.Entry) (api.CounterStatus, error) { return api.CounterStatus{}, nil },
		Refuse:   func(string) { refused.Add(1) },
	})
	srv.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return l.Addr().String(), refused, open
}

// Clients that do not read their pages hold a bounded amount of memory, do not block other clients, and are
// disconnected.
func TestClientsThatDoNotRead(t *testing.T) {
	addr, refused, open := largePage(t)
	for range 20 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	}
	eventually(t, 8*time.Second, "a page for a client that reads", func() bool {
		res, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		return strings.Contains(string(b), "keyward_xa 7")
	})
	if refused.Load() == 0 {
		t.Error("nothing was counted")
	}
	http.DefaultClient.CloseIdleConnections()
	eventually(t, writeTime+5*time.Second, "all connections closed after the write timeout", func() bool { return open.Load() == 0 })
}

// eventually waits until cond returns true.
func eventually(t *testing.T, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Requests about keys beyond the rate are refused with the reason.
func TestLooksAreRationed(t *testing.T) {
	addr, refused, _ := largePage(t)
	var asking sync.WaitGroup
	var answered, turned atomic.Int64
	for range 4 {
		asking.Go(func() {
			for range 100 {
				res, err := http.Get("http://" + addr + "/v1/counters?domain=d&key=k=v")
				if err != nil {
					t.Error(err)
					return
				}
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				switch {
				case res.StatusCode == http.StatusOK:
					answered.Add(1)
				case res.StatusCode == http.StatusServiceUnavailable && string(b) == tooManyLookups+"\n" && res.Header.Get("Retry-After") == "1":
					turned.Add(1)
				default:
					t.Errorf("%d %s", res.StatusCode, b)
				}
			}
		})
	}
	asking.Wait()
	if turned.Load() == 0 || turned.Load() != refused.Load() || answered.Load() < lookupBurst {
		t.Errorf("%d answered, %d turned away, %d counted", answered.Load(), turned.Load(), refused.Load())
	}
	l := newLookupLimiter(newPageLimiter(nil))
	now := time.Now()
	for i := range 1000 {
		if !l.take(now.Add(time.Duration(i) * lookupInterval)) {
			t.Fatalf("request %d within the rate is refused", i)
		}
	}
}

// A page is the same with and without the limiter.
func TestPagesKeepTheirHeaders(t *testing.T) {
	p := newPageLimiter(nil)
	srv := httptest.NewServer(p.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-A", "1")
		http.Error(w, "none", http.StatusTeapot)
	})))
	defer srv.Close()
	res, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusTeapot || string(b) != "none\n" || res.Header.Get("X-A") != "1" {
		t.Errorf("%v %s", res, b)
	}
	if p.held != 0 || len(p.sending) != 0 {
		t.Errorf("%d bytes are held after all pages were sent", p.held)
	}
}

// Requests that differ in irrelevant headers and parameters share one page.
func TestPagesAreFew(t *testing.T) {
	var arrived, rendered atomic.Int64
	hold := make(chan struct{})
	p := newPageLimiter(nil)
	pages := p.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rendered.Add(1) == 1 {
			<-hold // the others come meanwhile
		}
		_, _ = io.WriteString(w, r.URL.RawQuery)
	}))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		pages(w, r)
	}))
	defer srv.Close()
	var asking sync.WaitGroup
	get := func(i int) {
		req, _ := http.NewRequest(http.MethodGet, srv.URL+"/metrics?x="+strconv.Itoa(i), nil)
		req.Header.Set("Accept", "text/x-"+strconv.Itoa(i)+", text/plain;q=0."+strconv.Itoa(i+1))
		req.Header.Set("Accept-Encoding", "x"+strconv.Itoa(i)+", gzip")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		if b, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK || len(b) > 0 {
			t.Errorf("%d %s", res.StatusCode, b)
		}
	}
	asking.Go(func() { get(0) })
	for rendered.Load() == 0 {
		runtime.Gosched()
	}
	for i := range 40 {
		asking.Go(func() { get(i + 1) })
	}
	for arrived.Load() < 41 {
		runtime.Gosched()
	}
	close(hold)
	asking.Wait()
	if n := rendered.Load(); n > 8 {
		t.Errorf("%d pages were made for 41 requests of one", n)
	}
}

func TestPlainRequests(t *testing.T) {
	for _, c := range []struct{ accept, encoding, wantFormat, wantEncoding string }{
		{"", "", "text/plain; version=0.0.4; charset=utf-8", ""},
		{"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.2", "gzip", "application/openmetrics-text; version=1.0.0; charset=utf-8", "gzip"},
		{"*/*", "deflate, GZIP;q=0.5", "text/plain; version=0.0.4; charset=utf-8", "gzip"},
		{"text/html", "gzip;q=0, br", "text/plain; version=0.0.4; charset=utf-8", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics?name[]=a", nil)
		r.Header.Set("Accept", c.accept)
		r.Header.Set("Accept-Encoding", c.encoding)
		got := normalize(r)
		if got.Header.Get("Accept") != c.wantFormat || got.Header.Get("Accept-Encoding") != c.wantEncoding || got.URL.String() != "/metrics" {
			t.Errorf("%q, %q: %v %v", c.accept, c.encoding, got.URL, got.Header)
		}
	}
}
