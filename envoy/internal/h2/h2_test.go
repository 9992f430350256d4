package h2

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// text is a message that is its own encoding.
type text string

func (t text) Append(b []byte) []byte { return append(b, t...) }

// bytesCodec passes messages through unchanged.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) { return []byte(*v.(*string)), nil }
func (bytesCodec) Unmarshal(b []byte, v any) error {
	*v.(*string) = string(b)
	return nil
}
func (bytesCodec) Name() string { return "proto" }

type method func(*Stream)

func (m method) Serve(c *Stream) { m(c) }

const (
	echo  = "/test.Test/Echo"  // answers at once with what it was asked
	late  = "/test.Test/Late"  // the same, on another goroutine
	gives = "/test.Test/Gives" // when the call is given up
	fails = "/test.Test/Fails" // with a status whose message is the request
	count = "/test.Test/Count" // with as many messages as the request is long
	huge  = "/test.Test/Huge"  // with as many bytes as it is asked for
	size  = "/test.Test/Size"  // with the length of the request
)

func methods() map[string]Handler {
	return map[string]Handler{
		echo: method(func(c *Stream) { c.Reply(text(c.Message())) }),
		late: method(func(c *Stream) { go func() { c.Reply(text(c.Message())) }() }),
		gives: method(func(c *Stream) {
			go func() {
				<-c.Done()
				c.Fail(codes.Canceled, "given up")
			}()
		}),
		fails: method(func(c *Stream) { c.Fail(codes.FailedPrecondition, string(c.Message())) }),
		count: method(func(c *Stream) {
			go func() {
				for i := range len(c.Message()) {
					if c.Send(text(fmt.Sprint(i))) != nil {
						break
					}
				}
				c.End()
			}()
		}),
		size: method(func(c *Stream) { c.Reply(text(fmt.Sprint(len(c.Message())))) }),
		both: NewDuplexHandler(maxBoth, func(d *Duplex) DuplexReceiver { return echoReceiver{d} }),
		huge: method(func(c *Stream) {
			var n int
			fmt.Sscan(string(c.Message()), &n)
			c.Reply(text(strings.Repeat("x", max(0, n))))
		}),
	}
}

// refusals counts refusals.
type refusals struct {
	mu sync.Mutex
	n  map[string]int
}

func (r *refusals) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == nil {
		r.n = map[string]int{}
	}
	r.n[reason]++
}

func (r *refusals) of(reason string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[reason]
}

// start serves o on a listener until the test ends.
func start(t testing.TB, network string, o Options) (*InlineServer, net.Listener, *refusals) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	r := &refusals{}
	if o.Methods == nil {
		o.Methods = methods()
	}
	if o.Refuse == nil {
		o.Refuse = r.add
	}
	s := NewInlineServer(o)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l, r
}

// client returns a grpc-go connection.
func client(t testing.TB, l net.Listener, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	target := "passthrough:///" + l.Addr().String()
	if l.Addr().Network() == "unix" {
		target = "unix:" + l.Addr().String()
	}
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(64<<20))}, opts...)
	c, err := grpc.NewClient(target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ask(ctx context.Context, c *grpc.ClientConn, method, in string) (string, error) {
	var out string
	err := c.Invoke(ctx, method, &in, &out)
	return out, err
}

func TestUnaryCalls(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			_, l, _ := start(t, network, Options{})
			c := client(t, l)
			for _, m := range []string{echo, late} {
				for _, in := range []string{"", "hello", strings.Repeat("long ", 10_000), strings.Repeat("12345678", 1<<18)} {
					out, err := ask(t.Context(), c, m, in)
					if err != nil || out != in {
						t.Fatalf("%s of %d bytes: %d bytes, %v", m, len(in), len(out), err)
					}
				}
			}
		})
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	_, l, _ := start(t, "tcp", Options{})
	c := client(t, l)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for j := range 200 {
				in := fmt.Sprint(i, " ", j, strings.Repeat("x", j))
				if out, err := ask(t.Context(), c, []string{echo, late}[j%2], in); err != nil || out != in {
					t.Errorf("%q: %q, %v", in, out, err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestHeadersAndTimeout(t *testing.T) {
	o := Options{Headers: []KeptHeader{{Name: "x-a"}, {Name: "x-b"}}, Methods: map[string]Handler{
		echo: method(func(c *Stream) {
			c.Reply(text(fmt.Sprintf("%q %q %v", c.Header(0), c.Header(1), c.Timeout(time.Now()) > 50*time.Second && c.Timeout(time.Now()) <= time.Minute)))
		}),
	}}
	_, l, _ := start(t, "tcp", o)
	c := client(t, l)
	for i := range 10 {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-a", fmt.Sprint(i/3), "x-c", "no", "x-a", "second"), time.Minute)
		out, err := ask(ctx, c, echo, "")
		cancel()
		if want := fmt.Sprintf(`"%d" "" true`, i/3); err != nil || out != want {
			t.Errorf("%s, not %s: %v", out, want, err)
		}
	}
}

func TestStatuses(t *testing.T) {
	_, l, _ := start(t, "tcp", Options{})
	c := client(t, l)
	for _, tt := range []struct {
		method, in string
		code       codes.Code
		message    string
	}{
		{fails, "", codes.FailedPrecondition, ""},
		{fails, "plain", codes.FailedPrecondition, "plain"},
		{fails, "100 %\n\x00 ä €", codes.FailedPrecondition, "100 %\n\x00 ä €"},
		{fails, "\xff", codes.FailedPrecondition, "\ufffd"},
		{fails, strings.Repeat("%", 10_000), codes.FailedPrecondition, strings.Repeat("%", 4096)},
		{"/test.Test/None", "", codes.Unimplemented, "unknown method None for service test.Test"},
		{"/none.None/None", "", codes.Unimplemented, "unknown service none.None"},
		{"/none", "", codes.Unimplemented, `malformed method name: "/none"`},
	} {
		_, err := ask(t.Context(), c, tt.method, tt.in)
		if s := status.Convert(err); s.Code() != tt.code || s.Message() != tt.message {
			t.Errorf("%s %q: %v %q", tt.method, tt.in, s.Code(), s.Message())
		}
	}
	if out, err := ask(t.Context(), c, echo, "still there"); err != nil || out != "still there" {
		t.Errorf("after all that: %q, %v", out, err)
	}
}
