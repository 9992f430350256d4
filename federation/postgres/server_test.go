package postgres

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/federationtest"
	"github.com/keyward/keyward/internal/lab"
)

// testServer is a PostgreSQL on a loopback port.
type testServer struct {
	testing.TB
	*lab.Postgres
	dir, address string
}

// startServer starts a PostgreSQL that ends with the test.
func startServer(t testing.TB) *testServer {
	t.Helper()
	s := newServer(t)
	if err := s.Init(); err != nil {
		t.Fatal(err)
	}
	s.start()
	return s
}

// newServer returns a PostgreSQL without data, which does not run yet. It skips the test if there is none.
func newServer(t testing.TB) *testServer {
	t.Helper()
	p, err := lab.NewPostgres()
	if errors.Is(err, lab.ErrNoPostgres) && os.Getenv("KEYWARD_POSTGRES") != "required" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && p.Process != nil {
			t.Log(p.Tail(3000))
		}
		p.Remove()
	})
	return &testServer{TB: t, Postgres: p, dir: p.Data, address: p.Addr}
}

// command runs one of PostgreSQL's programs.
func (s *testServer) command(name string, args ...string) {
	s.Helper()
	if err := s.Command(name, args...); err != nil {
		s.Fatal(err)
	}
}

// start starts the server, and waits until it replies.
func (s *testServer) start() {
	s.Helper()
	if err := s.Start(); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	err := lab.Await(ctx, "PostgreSQL", func(ctx context.Context) error {
		c, err := pgx.Connect(ctx, s.url(""))
		if err == nil {
			err = c.Close(ctx)
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

func (s *testServer) url(query string) string {
	return "postgres://keyward:secret@" + s.address + "/postgres?sslmode=disable&" + strings.TrimPrefix(query, "?")
}

const testEpoch = 7

// open returns a Coordinator for the server.
func (s *testServer) open(query string) *Coordinator {
	s.Helper()
	c, err := Open(context.Background(), Options{URL: s.url(query), Federation: "test", Terms: federation.Always(testEpoch)})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(c.Close)
	return c
}

// empty opens a Coordinator for the server as the suite requires it.
func (s *testServer) empty(query string) federationtest.Open {
	c := s.open(query)
	if err := c.Setup(s.Context()); err != nil {
		s.Fatal(err)
	}
	return func(t *testing.T, o federationtest.Options) federation.Coordinator {
		t.Helper()
		if _, err := c.pool.Exec(t.Context(), "truncate keyward_window, keyward_line"); err != nil {
			t.Fatal(err)
		}
		c.terms, c.now = o.Terms(), o.Now
		if err := c.setSince(t.Context(), o.Since/1000); err != nil {
			t.Fatal(err)
		}
		return c
	}
}
