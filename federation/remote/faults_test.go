package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/connguard"
)

// fails requires an error that contains text.
func fails(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v does not contain %q", err, text)
	}
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// stub is a Coordinator whose calls run lease.
type stub struct {
	lease func(ctx context.Context, rs []federation.PoolRequest) ([]federation.PoolGrant, error)
}

func (s stub) Lease(ctx context.Context, _ string, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
	return s.lease(ctx, rs)
}

func (s stub) Reconcile(ctx context.Context, _ string, rs []federation.PoolRequest) error {
	_, err := s.lease(ctx, rs)
	return err
}

func (s stub) Healthy(ctx context.Context) error {
	_, err := s.lease(ctx, nil)
	return err
}

// slow returns a stub whose calls begin with a value for began and last until release is closed.
func slow() (s stub, began, release chan struct{}) {
	began, release = make(chan struct{}, 10_000), make(chan struct{})
	return stub{func(ctx context.Context, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
		began <- struct{}{}
		select {
		case <-release:
			return []federation.PoolGrant{{Key: rs[0].Key, Seq: rs[0].Seq, Total: rs[0].Tokens}}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}, began, release
}

// TestHostileBytes requires that malformed input ends its connection, with a reason, and nothing else.
func TestHostileBytes(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := serve(t, ServeOptions{
		Coordinator: memory(), Guard: connguard.New(reg).Guard("coordinator"),
		pace: pace{handshake: 300 * time.Millisecond, stall: 300 * time.Millisecond},
	})
	greeting := string(helloFrame(hello{version, version, testEpoch, "a"}))
	frame := func(typ byte, payload string) string {
		b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)+1))
		return string(append(b, typ)) + payload
	}
	call := string(callFrame(&call{1, time.Second, opLease, []federation.PoolRequest{request(1)}}))
	for name, tt := range map[string]struct{ send, want string }{
		"nothing":           {"", ""},
		"another protocol":  {"GET / HTTP/1.1\r\n\r\n", ""},
		"TLS":               {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", ""},
		"half a hello":      {greeting[:15], ""},
		"a large hello":     {magic + "\xff\xff\xff\x7f", ""},
		"a call as hello":   {magic + call, ""},
		"an empty hello":    {magic + frame(frameHello, ""), ""},
		"a later version":   {string(helloFrame(hello{2, 3, testEpoch, "a"})), "protocol versions 2 to 3"},
		"no region":         {string(helloFrame(hello{1, 3, testEpoch, ""})), "not in the layout"},
		"another region":    {string(helloFrame(hello{1, 1, testEpoch, "z"})), `region "z" is not in the layout`},
		"another layout":    {string(helloFrame(hello{1, 1, testEpoch + 1, "a"})), "epoch 8, the coordinator one of epoch 7"},
		"a length of 0":     {greeting + "\x00\x00\x00\x00", "frame of 0 bytes"},
		"a large frame":     {greeting + "\x01\x00\x10\x00", "frame of 1048577 bytes"},
		"an unknown frame":  {greeting + frame(99, ""), "unknown frame type 99"},
		"a second hello":    {greeting + greeting[len(magic):], "unknown frame type 16"},
		"half a call":       {greeting + call[:60], ""},
		"a short call":      {greeting + frame(frameCall, "short"), "call: truncated"},
		"an unknown method": {greeting + frame(frameCall, strings.Repeat("\x09", 15)), "unknown method 9"},
		"many requests":     {greeting + frame(frameCall, strings.Repeat("\x01", 13)+"\xff\xff"), "65535 requests do not fit"},
		"a short request":   {greeting + frame(frameCall, strings.Repeat("\x01", 13)+"\x01\x00\x01\x00"+strings.Repeat("x", 200)), "request 1 of a call"},
		"a long note":       {greeting + call[:len(call)-4] + "\xff\xff\x00\x00", "request 1 of a call"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.WriteString(conn, tt.send); err != nil {
				t.Fatal(err)
			}
			reply, err := io.ReadAll(conn)
			var network net.Error
			if errors.As(err, &network) && network.Timeout() || !strings.Contains(string(reply), tt.want) {
				t.Errorf("%q %v, want %q", reply, err, tt.want)
			}
		})
	}
	t.Cleanup(func() { // after the parallel tests
		if got, want := refusals(t, reg), "cut epoch malformed preface region stalled version"; got != want {
			t.Errorf("reasons %q, want %q", got, want)
		}
		c := Dial(DialOptions{Address: s.Addr().String(), Region: "a", Epoch: epochOf(testEpoch)})
		defer c.Close()
		if gs, err := c.Lease(context.Background(), "a", []federation.PoolRequest{request(5)}); err != nil || gs[0].Total != 5 {
			t.Error(gs, err)
		}
	})
}

// refusals returns the reasons for which connections were refused.
func refusals(t *testing.T, reg prometheus.Gatherer) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "keyward_refused_total" && l.GetName() == "reason" {
					reasons = append(reasons, l.GetValue())
				}
			}
		}
	}
	slices.Sort(reasons)
	return strings.Join(reasons, " ")
}

// TestKeptMemory requires that a client is disconnected that makes the server keep more than its part when memory is short.
func TestKeptMemory(t *testing.T) {
	store, began, _ := slow()
	s := serve(t, ServeOptions{Coordinator: store})
	others := s.account.Open()
	defer others.Close()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	rs := make([]federation.PoolRequest, maxRequests)
	for i := range rs {
		rs[i] = request(1)
		rs[i].Note = make([]byte, 400)
	}
	large := callFrame(&call{1, time.Minute, opLease, rs})
	conn.Write(append(helloFrame(hello{version, version, testEpoch, "a"}), large...))
	<-began
	conn.Write(large)
	<-began // memory is not short
	if held := s.account.Held(); held < int64(2*len(large)-20) || held > int64(2*len(large)) {
		t.Errorf("%d bytes are charged for 2 calls of %d bytes", held, len(large))
	}
	others.Charge(maxKept)
	conn.Write(large)
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still open")
	}
	eventually(t, "all is released", func() bool { return s.account.Held() == maxKept })
}

func TestRefusedClients(t *testing.T) {
	s := serve(t, ServeOptions{Coordinator: memory()})
	address := s.Addr().String()
	for want, change := range map[string]func(*DialOptions){
		"epoch 9, the coordinator one of epoch 7": func(o *DialOptions) { o.Epoch = epochOf(9) },
		`region "z" is not in the layout`:         func(o *DialOptions) { o.Region = "z" },
	} {
		c := dial(t, address, change)
		_, err := c.Lease(bounded(t), c.o.Region, []federation.PoolRequest{request(1)})
		fails(t, err, want)
		fails(t, c.Healthy(bounded(t)), want)
	}
	c := dial(t, address, nil)
	_, err := c.Lease(bounded(t), "b", []federation.PoolRequest{request(1)})
	fails(t, err, `this client calls for region "a", not "b"`)
	r := request(1)
	r.Epoch++
	if gs, err := c.Lease(bounded(t), "a", []federation.PoolRequest{r}); err != nil || len(gs) != 0 {
		t.Error("a request of another layout:", gs, err)
	}
	c.Close()
	_, err = c.Lease(bounded(t), "a", []federation.PoolRequest{request(1)})
	fails(t, err, "the client is closed")
}

// TestErrorsOfTheStore requires that the texts of errors reach the client, and that the connection survives them.
func TestErrorsOfTheStore(t *testing.T) {
	long := strings.Repeat("x", 2*maxText)
	s := serve(t, ServeOptions{Coordinator: stub{func(context.Context, []federation.PoolRequest) ([]federation.PoolGrant, error) {
		return nil, errors.New("store is away " + long)
	}}})
	c := dial(t, s.Addr().String(), nil)
	_, err := c.Lease(bounded(t), "a", []federation.PoolRequest{request(1)})
	fails(t, err, "lease from coordinator "+s.Addr().String()+": store is away x")
	fails(t, c.Reconcile(bounded(t), "a", []federation.PoolRequest{request(1)}), "store is away")
	fails(t, c.Healthy(bounded(t)), "store is away")
}

// TestKilledInMidCall requires that calls in flight fail when the server dies, and that the client finds its successor.
func TestKilledInMidCall(t *testing.T) {
	store, began, _ := slow()
	s := serve(t, ServeOptions{Coordinator: store})
	address := s.Addr().String()
	c := dial(t, address, nil)
	errs := make(chan error)
	for range 3 {
		go func() {
			_, err := c.Lease(bounded(t), "a", []federation.PoolRequest{request(1)})
			errs <- err
		}()
	}
	for range 3 {
		<-began
	}
	at := time.Now()
	stop(t, s)
	for range 3 {
		fails(t, <-errs, "connection lost: ")
	}
	if took := time.Since(at); took > time.Second {
		t.Errorf("the calls failed after %v", took)
	}
	eventually(t, "calls fail without a server", func() bool {
		err := c.Healthy(bounded(t))
		return err != nil && strings.Contains(err.Error(), "connection refused")
	})

	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip("the port was taken:", err)
	}
	again := Serve(ln, ServeOptions{Coordinator: memory(), Schedule: layoutOf("a")})
	defer stop(t, again)
	eventually(t, "connected again", func() bool { return c.Healthy(bounded(t)) == nil })
}

// TestSlowServer requires that no call takes longer than its context, whether the store is slow or the server hangs.
func TestSlowServer(t *testing.T) {
	store, _, _ := slow()
	hanging, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never replies
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close()
	for name, address := range map[string]string{
		"slow": serve(t, ServeOptions{Coordinator: store}).Addr().String(), "hanging": hanging.Addr().String(),
	} {
		c := dial(t, address, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		_, err := c.Lease(ctx, "a", []federation.PoolRequest{request(1)})
		cancel()
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "deadline exceeded") || took > time.Second {
			t.Errorf("%s: %v after %v", name, err, took)
		}
	}
}

// TestDeadlineReachesTheStore requires that a call ends at the server when its caller gives up.
func TestDeadlineReachesTheStore(t *testing.T) {
	ended := make(chan time.Duration, 1)
	s := serve(t, ServeOptions{Coordinator: stub{func(ctx context.Context, _ []federation.PoolRequest) ([]federation.PoolGrant, error) {
		began := time.Now()
		<-ctx.Done()
		ended <- time.Since(began)
		return nil, ctx.Err()
	}}})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, _ = dial(t, s.Addr().String(), nil).Lease(ctx, "a", []federation.PoolRequest{request(1)})
	if took := <-ended; took > time.Second {
		t.Errorf("the store worked for %v", took)
	}
}

// TestPipelined makes a thousand calls at once, of which the store processes maxCalls at a time.
func TestPipelined(t *testing.T) {
	var now, most atomic.Int64
	s := serve(t, ServeOptions{Coordinator: stub{func(_ context.Context, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Duration(rs[0].Seq%7) * 100 * time.Microsecond) // so that replies change places
		return []federation.PoolGrant{{Key: rs[0].Key, Seq: rs[0].Seq, Total: rs[0].Tokens}}, nil
	}}})
	c := dial(t, s.Addr().String(), nil)
	var all sync.WaitGroup
	for i := range uint64(1000) {
		all.Go(func() {
			r := request(i)
			r.Seq = i + 1
			if gs, err := c.Lease(bounded(t), "a", []federation.PoolRequest{r}); err != nil || len(gs) != 1 || gs[0].Seq != i+1 || gs[0].Total != i {
				t.Errorf("call %d: %+v %v", i, gs, err)
			}
		})
	}
	all.Wait()
	if n := most.Load(); n < 2 || n > maxCalls {
		t.Errorf("%d calls at a time", n)
	}
}

// TestHostileServer requires that a client survives what a server sends.
func TestHostileServer(t *testing.T) {
	const cut = "closed by the coordinator"
	for name, tt := range map[string]struct{ send, want string }{
		"too many grants":    {string(replyFrames(1, make([]federation.PoolGrant, 2))[0]), "2 grants for 1 requests"},
		"an unknown frame":   {string(simpleFrame(77)), "unknown frame type 77"},
		"a large frame":      {"\xff\xff\xff\xff", "frame of 4294967295 bytes"},
		"half a reply":       {string(errorFrame(1, errors.New("text"))[:12]), "unexpected EOF"},
		"a malformed reply":  {"\x02\x00\x00\x00\x02\xff", "truncated"},
		"a malformed goaway": {"\x02\x00\x00\x00\x05\xff", "truncated"},
		"goaway":             {string(goAwayFrame("tired")), "the coordinator closes the connection: tired"},
		"another's reply":    {string(errorFrame(99, errors.New("text"))), cut},
		"nothing":            {"", cut},
	} {
		near, far := net.Pipe()
		c := newClientStream(t.Context(), near, pace{}.orDefaults())
		var ends sync.WaitGroup
		ends.Go(c.write)
		ends.Go(c.readReplies)
		ends.Go(func() {
			far.Read(make([]byte, 1024))
			io.WriteString(far, tt.send)
			far.Close()
		})
		_, err := c.call(bounded(t), opLease, []federation.PoolRequest{request(1)})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		ends.Wait()
	}
}
