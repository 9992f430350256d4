package stats

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

const patience = 10 * time.Second

// server is a statsd server on TCP.
type server struct {
	net.Listener
	t *testing.T
}

func listenTCP(t *testing.T, address string) *server {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &server{l, t}
}

// accept accepts a connection. read returns its lines.
func (s *server) accept() (conn net.Conn, read func() string) {
	s.t.Helper()
	_ = s.Listener.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	conn, err := s.Accept()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	r := bufio.NewReader(conn)
	return conn, func() string {
		line, err := r.ReadString('\n')
		if err != nil {
			s.t.Fatalf("no line: %v", err)
		}
		return strings.TrimSuffix(line, "\n")
	}
}

func start(t *testing.T, s *StatStore, o StatsdOptions) *Statsd {
	t.Helper()
	o.Interval, o.Retry = 5*time.Millisecond, 5*time.Millisecond
	d, err := StartStatsd(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func TestStatsdLines(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	srv := listenTCP(t, "127.0.0.1:0")
	s := New(Options{})
	s.Rule("d.key_value").TotalHits.Add(3)
	d := start(t, s, StatsdOptions{Address: srv.Addr().String(), Tags: map[string]string{"zone": "eu.1", "build": "7:a", "none": ""}})
	_, read := srv.accept()
	const tags = ".__build=7_a.__zone=eu_1"
	if got, want := read(), "ratelimit.service.rate_limit.d.key_value.total_hits"+tags+":3|c"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// Later flushes contain only increments.
	s.Rule("d.key_value").TotalHits.Add(2)
	if got, want := read(), "ratelimit.service.rate_limit.d.key_value.total_hits"+tags+":2|c"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	m := s.Method("ShouldRateLimit")
	m.ResponseTime.Observe(12 * time.Millisecond)
	if got, want := read(), "ratelimit_server.ShouldRateLimit.response_time"+tags+":12|ms"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	m.ResponseTime.Observe(1500 * time.Microsecond)
	if got, want := read(), "ratelimit_server.ShouldRateLimit.response_time"+tags+":1.500000|ms"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	s.Gauge("ratelimit.localcache.entryCount").Set(9)
	for range 2 { // a gauge is sent every time
		if got, want := read(), "ratelimit.localcache.entryCount"+tags+":9|g"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	d.Close()
}

func TestCloseSendsWhatIsLeft(t *testing.T) {
	srv := listenTCP(t, "127.0.0.1:0")
	s := New(Options{})
	d, err := StartStatsd(s, StatsdOptions{Address: srv.Addr().String(), Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	conn, read := srv.accept()
	s.Counter("a").Add(1)
	d.Close()
	if got := read(); got != "a:1|c" {
		t.Errorf("got %s", got)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection stays: %v", err)
	}
}

// A value in a request cannot inject lines.
func TestNoLineIsInjected(t *testing.T) {
	srv := listenTCP(t, "127.0.0.1:0")
	s := New(Options{})
	s.RuleBytes([]byte("d.k_a\nfake:1|c\r\n\x00")).TotalHits.Add(1)
	start(t, s, StatsdOptions{Address: srv.Addr().String()})
	_, read := srv.accept()
	if got, want := read(), "ratelimit.service.rate_limit.d.k_a_fake_1_c___.total_hits:1|c"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Nothing is lost while the server is unavailable: the sum over all its restarts is the count.
func TestStatsdComesBack(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	first := listenTCP(t, "127.0.0.1:0")
	address := first.Addr().String()
	s := New(Options{})
	c := s.Counter("a")
	d := start(t, s, StatsdOptions{Address: address})
	conn, read := first.accept()
	sum := uint64(0)
	take := func(line string) {
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(line, "a:"), "|c"), 10, 64)
		if err != nil {
			t.Fatalf("line %q", line)
		}
		sum += n
	}
	c.Add(1)
	take(read())
	_ = first.Close()
	_ = conn.Close()
	until(t, func() bool { return testutil.ToFloat64(s.metrics.failures) >= 2 })
	c.Add(5)
	second := listenTCP(t, address)
	_, read = second.accept()
	c.Add(7)
	for sum < 13 {
		take(read())
	}
	if sum != 13 {
		t.Errorf("the server received %d, want 13", sum)
	}
	d.Close()
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("it does not come about")
		}
	}
}

// A server that does not read delays neither the counters nor Close.
func TestStalledServer(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	srv := listenTCP(t, "127.0.0.1:0")
	s := New(Options{})
	for i := range 2000 { // lines of 20 MB, more than the sockets hold
		s.RuleBytes(fmt.Appendf(nil, "d.%d", i)).TotalHits.Add(1)
	}
	d := start(t, s, StatsdOptions{Address: srv.Addr().String(), Tags: map[string]string{"zone": strings.Repeat("x", 10_000)}})
	srv.accept()
	until(t, func() bool { return testutil.ToFloat64(s.metrics.failures) >= 1 })
	d.Close()
}

// udp receives datagrams.
func listenUDP(t *testing.T) (address string, read func() []string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	buffer := make([]byte, 1<<16)
	return conn.LocalAddr().String(), func() []string {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if n > 1432 {
			t.Errorf("a datagram of %d bytes", n)
		}
		return strings.Split(strings.TrimSuffix(string(buffer[:n]), "\n"), "\n")
	}
}

func TestDogStatsd(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	address, read := listenUDP(t)
	s := New(Options{})
	s.Rule("mongo_cps.database_users").WithinLimit.Add(4)
	d := start(t, s, StatsdOptions{
		Address: address, Dog: true, DogTags: []string{"env:prod"}, Tags: map[string]string{"COMMIT": "12345"},
		Mogrifiers: []Mogrifier{{
			Pattern: `^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$`, Name: "ratelimit.service.rate_limit.$3",
			Tags: map[string]string{"domain": "$1", "descriptor": "$2", "five": "$5"},
		}},
	})
	if got, want := read()[0], "ratelimit.service.rate_limit.within_limit:4|c|#env:prod,COMMIT:12345,descriptor:database_users,domain:mongo_cps,five:$5"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	s.Timer("ratelimit_server.Check.response_time").Observe(2 * time.Millisecond)
	if got, want := read()[0], "ratelimit_server.Check.response_time:2.000000|ms|#env:prod,COMMIT:12345"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	d.Close()
}

// Many series arrive in datagrams of the size of an Ethernet frame, each once.
func TestDatagrams(t *testing.T) {
	address, read := listenUDP(t)
	s := New(Options{})
	for i := range 200 {
		s.RuleBytes(fmt.Appendf(nil, "d.%0100d", i)).TotalHits.Add(1)
	}
	start(t, s, StatsdOptions{Address: address, Network: "udp"})
	seen := map[string]int{}
	for len(seen) < 200 {
		for _, line := range read() {
			seen[line]++
			if seen[line] > 1 || !strings.HasSuffix(line, ".total_hits:1|c") {
				t.Fatalf("line %q, %d times", line, seen[line])
			}
		}
	}
}

// The sample is uniform, and its rate restores the true number.
func TestManyTimes(t *testing.T) {
	srv := listenTCP(t, "127.0.0.1:0")
	s := New(Options{})
	d, err := StartStatsd(s, StatsdOptions{Address: srv.Addr().String(), Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	_, read := srv.accept()
	timer := s.Timer("t")
	const n = reservoirSize * 8
	for i := range n {
		timer.Observe(time.Duration(i) * time.Millisecond)
	}
	d.Close()
	var late int
	for range reservoirSize {
		line := read()
		value, ok := strings.CutSuffix(line, "|ms|@0.125")
		ms, err := strconv.Atoi(strings.TrimPrefix(value, "t:"))
		if !ok || err != nil {
			t.Fatalf("line %q", line)
		}
		if ms >= n/2 {
			late++
		}
	}
	// Half of the sample comes from the second half: 256 of 512, with a standard deviation of 11.
	if late < 180 || late > 332 {
		t.Errorf("%d of %d are of the second half", late, reservoirSize)
	}
}

func TestBadStatsdOptions(t *testing.T) {
	for _, o := range []StatsdOptions{
		{Address: "nowhere"},
		{Address: "a:1", Mogrifiers: []Mogrifier{{Pattern: "("}}},
	} {
		if _, err := StartStatsd(New(Options{}), o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestMogrify(t *testing.T) {
	m, err := newMogrifiers([]Mogrifier{
		{Pattern: `^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.foo$`, Name: "custom.foo", Tags: map[string]string{"domain": "$1"}},
		{Pattern: `^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$`, Name: "$3$0x", Tags: map[string]string{"d": "$1/$2", "b": "fixed", "c": "$99999999999999999999"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := []struct {
		in, name string
		tags     []string
	}{
		{"some.other", "some.other", nil},
		{"ratelimit.service.rate_limit.d.k.foo", "custom.foo", []string{"domain:d"}},
		{"ratelimit.service.rate_limit.d.k.bar", "barratelimit.service.rate_limit.d.k.barx", []string{"b:fixed", "c:$99999999999999999999", "d:d/k"}},
	}
	for _, r := range rows {
		name, tags := m.rewrite(r.in)
		if name != r.name || !reflect.DeepEqual(slices.Clip(tags), r.tags) {
			t.Errorf("%s: %s %v", r.in, name, tags)
		}
	}
}

// If a write is incomplete, counters whose lines were written completely are not sent again; all others are.
func TestBrokenWrite(t *testing.T) {
	s := New(Options{})
	for i := range 10 {
		s.Counter(fmt.Sprintf("c%d", i)).Add(1)
	}
	d := &Statsd{store: s, format: &format{mogrifiers: &mogrifiers{}}, counters: map[*StatCounter]*sentCounter{}, gauges: map[*Gauge]label{}}
	d.buffer.limit = 22 // three lines of seven bytes
	got := ""
	for cut := 0; cut < 70 && len(got) < 70; cut += 9 {
		ours, theirs := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- d.flush(ours); _ = ours.Close() }()
		part := make([]byte, cut)
		n, _ := io.ReadFull(theirs, part)
		_ = theirs.Close()
		<-done
		whole := strings.LastIndexByte(string(part[:n]), '\n') + 1
		got += string(part[:whole])
	}
	lines := strings.Split(strings.TrimSpace(got), "\n")
	slices.Sort(lines)
	if want := "c0:1|c c1:1|c c2:1|c c3:1|c c4:1|c c5:1|c c6:1|c c7:1|c c8:1|c c9:1|c"; strings.Join(lines, " ") != want {
		t.Errorf("got %s", lines)
	}
}
