package redis

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/federationtest"
	"github.com/keyward/keyward/internal/lab"
)

// testServer is a Redis on a loopback port, without persistence.
type testServer struct {
	testing.TB
	path, dir, address string
	args               []string
	process            *lab.Process
}

// startServer starts a Redis that ends with the test. It skips the test if there is none.
func startServer(t testing.TB, args ...string) *testServer {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("KEYWARD_REDIS") == "required" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("no redis-server")
	}
	address, err := lab.Ports{}.Addr()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	s := &testServer{TB: t, path: path, dir: t.TempDir(), address: address}
	s.args = append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", s.dir}, args...)
	s.start()
	t.Cleanup(func() {
		s.process.Kill()
		if t.Failed() {
			t.Log(s.process.Tail(2000))
		}
	})
	return s
}

// start starts the server, and waits until it replies.
func (s *testServer) start() {
	s.Helper()
	var err error
	if s.process, err = lab.StartProcess(s.dir, lab.Spec{Name: "redis", Path: s.path, Args: s.args}); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	err = lab.Await(ctx, "Redis", func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

// open returns a Coordinator for the server.
func (s *testServer) open(query string) *Coordinator {
	s.Helper()
	c, err := Open(s.Context(), Options{URL: "redis://" + s.address + "/" + query, Terms: federation.Always(testEpoch)})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(c.Close)
	return c
}

const testEpoch = 7

// do sends a command to the server.
func (s *testServer) do(name string, args ...any) (any, error) {
	s.Helper()
	c, err := redigo.Dial("tcp", s.address)
	if err != nil {
		s.Fatal(err)
	}
	defer c.Close()
	reply, err := c.Do(name, args...)
	if err != nil {
		s.Fatal(err)
	}
	return reply, nil
}

// empty opens a Coordinator for the server as the suite requires it.
func (s *testServer) empty(query string) federationtest.Open {
	return func(t *testing.T, o federationtest.Options) federation.Coordinator {
		t.Helper()
		s.do("FLUSHALL")
		c := s.open(query)
		c.terms, c.now = o.Terms(), o.Now
		if err := c.setSince(t.Context(), o.Since/1000); err != nil {
			t.Fatal(err)
		}
		return c
	}
}
