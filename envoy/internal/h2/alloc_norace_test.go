//go:build !race

package h2

import (
	"runtime"
	"testing"
)

// In steady state decompressing a message does not allocate.
func TestInflateDoesNotAllocate(t *testing.T) {
	c := newConn(NewInlineServer(Options{}), nil)
	message := compressedFrame(gzipped([]byte("a usual message")))
	if n := testing.AllocsPerRun(1000, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		k := c.newCall(1)
		k.gzip, k.complete, k.message, k.received = true, true, append(k.message, message...), int64(len(message))
		if ok, err := c.inflate(k); !ok || string(k.Message()) != "a usual message" {
			t.Fatal(ok, err)
		}
		c.release(k)
		c.recycle(k)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// In steady state a call does not allocate, whether it is answered by the loop or late, with a client that sends what
// Envoy sends.
func TestCallsDoNotAllocate(t *testing.T) {
	calls := make(chan *Stream, 1000)
	defer close(calls)
	go func() {
		for c := range calls {
			c.Reply(constant{})
		}
	}()
	for name, m := range map[string]Handler{"inline": constant{}, "late": method(func(c *Stream) { calls <- c })} {
		t.Run(name, func(t *testing.T) {
			_, l, _ := start(t, "tcp", Options{Methods: map[string]Handler{echo: m}})
			c := newRawClient(t, l.Addr().String())
			c.calls(t, 10_000, 64)
			for _, flight := range []int{1, 64} {
				const n = 10_000
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				c.calls(t, n, flight)
				runtime.ReadMemStats(&after)
				// The garbage collector may empty pools, and the client allocates its output once per run.
				if got := float64(after.Mallocs-before.Mallocs) / n; got > 0.03 {
					t.Errorf("%d in flight: %.3f allocations a call", flight, got)
				}
			}
		})
	}
}
