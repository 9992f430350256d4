package cluster

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// besiege holds n connections to an address open, sends say on each, and opens each again when it is closed.
func besiege(t *testing.T, n int, to string, say []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var strangers, opened sync.WaitGroup
	opened.Add(n)
	for range n {
		strangers.Go(func() {
			first := sync.OnceFunc(opened.Done)
			defer first()
			for ctx.Err() == nil {
				var d net.Dialer
				c, err := d.DialContext(ctx, "tcp", to)
				if err != nil {
					sleep(ctx, 10*time.Millisecond)
					continue
				}
				first()
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = c.Write(say)
				_, _ = io.Copy(io.Discard, c)
				stop()
				_ = c.Close()
			}
		})
	}
	opened.Wait()
	t.Cleanup(func() {
		cancel()
		strangers.Wait()
	})
}

// Foreign hosts that hold a thousand streams to each gossip port, and open each again when it is closed, do not keep
// members from meeting, whether the streams are silent or begin like a member's.
func TestMembersMeetAmongSilentStreams(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		strangers    int
		say          []byte
	}{
		{"silent", refusedSilent, 1000, nil},
		{"more than are held", refusedCrowded, maxSilent + 500, nil},
		{"with a beginning", refusedCrowded, 60, append([]byte{typeLabeled, 4}, "test\x06"...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var refused reasons
			member := func(name string, join ...string) *Cluster {
				o := options(name, join...)
				o.Timing.Stream, o.OnRefused = 5*time.Second, refused.add
				return up(t, o)
			}
			a := member("a-0")
			besiege(t, tt.strangers, a.Gossip(), tt.say)
			begin := time.Now()
			b := member("b", a.Gossip())
			besiege(t, tt.strangers, b.Gossip(), tt.say)
			eventually(t, "two members on one ring", func() bool { return whole(a, b) })
			t.Logf("met after %v", time.Since(begin)) // TestSecurityGossipSilence limits it, with processes
			eventually(t, "counted as "+tt.reason, func() bool { return refused.of(tt.reason) > 0 })
		})
	}
}
