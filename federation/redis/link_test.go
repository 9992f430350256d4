package redis

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/lab"
)

// ends waits until the connection that c has to its server is known to have ended.
func ends(t *testing.T, c *Coordinator) {
	t.Helper()
	n := c.node(c.server.address)
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout+5*time.Second)
	defer cancel()
	err := lab.Await(ctx, "the end of the connection", func(context.Context) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.links) != 1 || n.links[0].usable() {
			return errors.New("still used")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestServerRestartsBetweenCalls requires that no call fails because its connection ended before it.
func TestServerRestartsBetweenCalls(t *testing.T) {
	s := startServer(t)
	c := s.open("")
	grant(t, c, "a", request(year, 1))
	s.process.Kill()
	ends(t, c)
	s.start()
	grant(t, c, "a", request(year, 1))
}

// TestServerHangs requires that a connection is replaced if the server owes a reply for callTimeout, even if all callers
// gave up earlier, and that a call which gave up does not disturb the next one.
func TestServerHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for callTimeout")
	}
	s := startServer(t)
	c := s.open("")
	r := request(year, 1)
	g := grant(t, c, "a", r)
	hang := func() {
		t.Helper()
		if err := s.process.Pause(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.Lease(ctx, "b", []federation.PoolRequest{request(year, 5)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
	hang()
	if err := s.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if g = grant(t, c, "a", next(g, r, 1)); g.Total != 2 || len(g.Others) != 1 || g.Others[0].Granted != 5 {
		t.Errorf("%+v", g)
	}
	hang()
	ends(t, c)
	if err := s.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	grant(t, c, "a", next(g, r, 1))
}

// TestOneConnection requires that calls at the same time share a connection, and that each gets its own replies.
func TestOneConnection(t *testing.T) {
	s := startServer(t)
	c := s.open("")
	if err := c.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range uint64(32) {
		all.Go(func() {
			r := request(year, i+1)
			r.Key[0] = i
			for range 20 {
				gs, err := c.Lease(t.Context(), "a", []federation.PoolRequest{r, r}) // the second one is a duplicate
				if err != nil || len(gs) != 1 || gs[0].Key != r.Key || gs[0].Seq != r.Seq || gs[0].Total != r.Have+r.Tokens {
					t.Errorf("%+v %v", gs, err)
					return
				}
				r = next(gs[0], r, i+1)
			}
		})
	}
	all.Wait()
	list, err := redigo.String(s.do("CLIENT", "LIST"))
	if n := strings.Count(list, "name=keyward "); err != nil || n != 1 {
		t.Errorf("%d connections: %v", n, err)
	}
}

// TestUser requires that a user suffices who may run scripts on Keyward's keys, and nothing else but INFO.
func TestUser(t *testing.T) {
	s := startServer(t)
	s.do("ACL", "SETUSER", "limited", "on", ">hidden", "~{kw*", "+evalsha", "+eval", "+info", "+select",
		"+time", "+get", "+set", "+exists", "+hset", "+hget", "+hmget", "+hgetall", "+hdel", "+pexpireat")
	c, err := Open(t.Context(), Options{URL: "redis://limited:hidden@" + s.address + "/3", Terms: federation.Always(testEpoch)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	grant(t, c, "a", request(year, 1))
	if space, err := redigo.String(s.do("INFO", "keyspace")); err != nil || !strings.Contains(space, "db3:keys=2,") {
		t.Errorf("%s %v", space, err)
	}
}

// TestClose requires that calls which wait for a reply return an error, and later ones, too.
func TestClose(t *testing.T) {
	s := startServer(t)
	c := s.open("")
	grant(t, c, "a", request(year, 1))
	if err := s.process.Pause(); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := c.Lease(t.Context(), "b", []federation.PoolRequest{request(year, 1)})
		result <- err
	}()
	c.Close()
	fails(t, <-result, "")
	_, err := c.Lease(t.Context(), "b", []federation.PoolRequest{request(year, 1)})
	fails(t, err, "")
}
