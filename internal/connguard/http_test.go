package connguard

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
)

func TestHTTPRequestsThatNeverCameToBe(t *testing.T) {
	s := New(prometheus.NewRegistry()).Guard("test")
	srv := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
		ReadHeaderTimeout: 100 * time.Millisecond, MaxHeaderBytes: 1000,
	}
	s.Watch(srv)
	l := listen(t, s, 100)
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	good := dial(t, l)
	for range 3 { // on one connection
		if _, err := io.WriteString(good, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(good), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	good.Close()
	dial(t, l).Close()
	for i, text := range []string{"GET / HTT", "GET /" + strings.Repeat("x", 10_000) + " HTTP/1.1\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01"} {
		c := dial(t, l)
		_, _ = io.WriteString(c, text)
		_, _ = io.Copy(io.Discard, c) // until it is closed
		eventually(t, "counted", func() bool { return refusals(s, Incomplete) == float64(i+1) })
	}
}

// Headers that calls keep are charged, also those of complete calls that stay open.
func TestHeadersAreCharged(t *testing.T) {
	long := func(id uint32, ends bool) []byte {
		return framed(t, func(f *http2.Framer) error {
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(100), EndHeaders: true})
			if ends {
				err = errors.Join(err, f.WriteData(id, true, []byte{0, 0, 0, 0, 0})) // it watches
			}
			return err
		})
	}
	s, c := speakTo(t, long(1, false), long(3, false), long(5, true))
	const want = 3 * (callSize + listSize) // of so long a block each
	eventually(t, "charged", func() bool { n := s.guards.account.Held(); return n >= want && n < want+1000 })
	c.Close()
	eventually(t, "let go", func() bool { return s.guards.account.Held() == 0 })
}

// What is read of an HTTP request is charged until it is answered. Beyond the limit, the connection ends.
func TestRequestsAreCharged(t *testing.T) {
	gates := New(prometheus.NewRegistry())
	s := gates.Guard("test")
	hold := make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-hold
	})}
	s.Watch(srv)
	l := listen(t, s, 100)
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	c := dial(t, l)
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 100_000))
	eventually(t, "charged", func() bool { return gates.account.Held() > 200_000 })
	select {
	case hold <- struct{}{}:
	case <-time.After(20 * time.Second):
		t.Fatal("the handler does not come to its end")
	}
	eventually(t, "let go", func() bool { return gates.account.Held() == 0 })
	others := gates.account.Open()
	others.Charge(maxKept)
	c2 := dial(t, l)
	_ = c2.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		_, _ = io.WriteString(c2, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n"+strings.Repeat("x", 10_000_000))
	}()
	eventually(t, "counted", func() bool { return refusals(s, Unfinished) == 1 })
	close(hold)
	others.Close()
	eventually(t, "let go", func() bool { return gates.account.Held() == 0 })
}

// An error response does not mark a connection as served.
func TestFailuresAreNotServed(t *testing.T) {
	for status, want := range map[int]bool{200: true, 302: true, 429: true, 400: false, 404: false, 503: false} {
		c := &conn{}
		a := &answerWriter{ResponseWriter: httptest.NewRecorder(), conn: c}
		a.WriteHeader(status)
		_, _ = a.Write([]byte("x"))
		if c.answered.Load() != want {
			t.Errorf("%d: served %v", status, !want)
		}
	}
}
