package gateways

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// answer is the response to a request through the gateway.
type answer struct {
	status int
	header http.Header
}

// limit returns the first number of x-ratelimit-limit, the limit of the rule that is next to be used up, or an empty string.
func (a answer) limit() string {
	first, _, _ := strings.Cut(a.header.Get("x-ratelimit-limit"), ",")
	return first
}

// number returns the number in a header, or -1.
func (a answer) number(header string) int {
	n, err := strconv.Atoi(a.header.Get(header))
	if err != nil {
		return -1
	}
	return n
}

// gateHeader makes the application answer a request only when the gate is open.
const gateHeader = "x-gate"

// gate is open if it is closed as a channel.
var gate atomic.Pointer[chan struct{}]

// closeGate closes the gate and returns a function that opens it.
func closeGate() (open func()) {
	c := make(chan struct{})
	gate.Store(&c)
	return func() { close(c) }
}

// startApplication serves HTTP behind the gateway until the test ends. The header x-tokens of a response is that of the request.
func startApplication(t testing.TB) {
	t.Helper()
	ln, err := net.Listen("tcp", bridgeIP+":"+upstreamPort)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(gateHeader) != "" {
			<-*gate.Load()
		}
		if tokens := r.Header.Get("x-tokens"); tokens != "" {
			w.Header().Set("x-tokens", tokens)
		}
		_, _ = io.WriteString(w, "ok")
	})}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close() })
}

// newClient returns a client with an address of its own, or that of the tests if ip is empty.
func newClient(ip string) *http.Client {
	d := &net.Dialer{Timeout: 5 * time.Second}
	if ip != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(ip)}
	}
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 64, IdleConnTimeout: 5 * time.Second}}
}

// get sends a request for a route through the gateway. headers alternate between names and values.
func (s *suite) get(client *http.Client, route string, headers ...string) (answer, error) {
	req, err := s.request(route)
	if err != nil {
		return answer{}, err
	}
	req.Host = host(route)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return answer{status: res.StatusCode, header: res.Header}, err
}

// requester is a gateway that routes only requests of its own kind.
type requester interface {
	request(route string) (*http.Request, error)
}

func (s *suite) request(route string) (*http.Request, error) {
	if g, ok := s.gateway.(requester); ok {
		return g.request(route)
	}
	return http.NewRequest(http.MethodGet, "http://"+s.gateway.address()+"/", nil)
}

// send sends a request and fails the test on an error.
func (s *suite) send(t *testing.T, route string, headers ...string) answer {
	t.Helper()
	a, err := s.get(s.client, route, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// sendTimes sends n requests one after the other, and returns the status codes.
func (s *suite) sendTimes(t *testing.T, n int, route string, headers ...string) (codes []int) {
	t.Helper()
	for range n {
		codes = append(codes, s.send(t, route, headers...).status)
	}
	return codes
}

// dialerIn returns a function that connects to addresses as a host's programs do, loopback ones included.
func dialerIn(host string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		runtime.LockOSThread() // never unlocked if the way back fails: the runtime then ends the thread
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return nil, err
		}
		defer own.Close()
		other, err := os.Open("/run/netns/" + host)
		if err != nil {
			return nil, err
		}
		defer other.Close()
		if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, err
		}
		c, dialErr := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, err
		}
		runtime.UnlockOSThread()
		return c, dialErr
	}
}

// clientIn returns a client that connects as a host's programs do, and closes each connection.
func clientIn(host string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dialerIn(host), DisableKeepAlives: true}}
}

// statSum returns the sum of the statistics on Envoy's admin page whose names end with suffix.
func statSum(ctx context.Context, client *http.Client, admin, suffix string) (sum float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/stats?"+url.Values{"filter": {strings.ReplaceAll(suffix, ".", `\.`)}}.Encode(), nil)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(page)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || !strings.HasSuffix(name, suffix) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("statistic %s: %w", name, err)
		}
		sum += v
	}
	return sum, nil
}
