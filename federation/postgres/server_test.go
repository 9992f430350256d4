package postgres

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/federationtest"
	"github.com/keyward/keyward/internal/lab"
)

// binaries returns the folder of PostgreSQL's programs. It skips the test if there is none.
func binaries(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // Debian's
	if len(found) == 0 && os.Getenv("KEYWARD_POSTGRES") == "required" {
		t.Fatal("no PostgreSQL")
	}
	if len(found) == 0 {
		t.Skip("no PostgreSQL")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

// testServer is a PostgreSQL on a loopback port.
type testServer struct {
	testing.TB
	bin, dir, address string
	process           *lab.Process
}

// startServer starts a PostgreSQL that ends with the test.
func startServer(t testing.TB) *testServer {
	t.Helper()
	s := newServer(t)
	s.command("initdb", "-D", s.dir, "-A", "trust", "-U", "keyward", "-E", "UTF8", "--locale=C", "--no-sync")
	s.start()
	return s
}

// newServer returns a PostgreSQL without data, which does not run yet. Its folder belongs to the user that runs it.
func newServer(t testing.TB) *testServer {
	t.Helper()
	s := &testServer{TB: t, bin: binaries(t)}
	var err error
	if s.address, err = (lab.Ports{}).Addr(); err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: no other user can enter that.
	parent, err := os.MkdirTemp("", "keyward-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.process != nil {
			s.crash()
			if t.Failed() {
				t.Log(s.process.Tail(3000))
			}
		}
		_ = os.RemoveAll(parent)
	})
	s.dir = filepath.Join(parent, "data")
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if c := credential(t); c != nil {
		for _, dir := range []string{parent, s.dir} {
			if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// credential returns the user that runs PostgreSQL, which refuses to run as root. It returns nil for the present user.
func credential(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return &syscall.Credential{Uid: 65534, Gid: 65534} // the user without files of its own
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// command runs one of PostgreSQL's programs.
func (s *testServer) command(name string, args ...string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(s)}
	cmd.Dir = filepath.Dir(s.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// start starts the server, and waits until it replies. It does not sync its files: no test cuts the power.
func (s *testServer) start() {
	s.Helper()
	host, port, _ := net.SplitHostPort(s.address)
	spec := lab.Spec{Name: "postgres", Path: filepath.Join(s.bin, "postgres"), Dir: s.dir, Args: []string{
		"-D", s.dir, "-h", host, "-p", port, "-k", "",
		"-c", "fsync=off", "-c", "max_connections=30", "-c", "shared_buffers=16MB",
	}}
	if c := credential(s); c != nil {
		ids := fmt.Sprintf("--reuid=%d --regid=%d --clear-groups --pdeathsig=KILL", c.Uid, c.Gid)
		spec.Args = slices.Concat(strings.Fields(ids), []string{spec.Path}, spec.Args)
		spec.Path = "/usr/bin/setpriv"
	}
	var err error
	if s.process, err = lab.StartProcess(filepath.Dir(s.dir), spec); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	err = lab.Await(ctx, "PostgreSQL", func(ctx context.Context) error {
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

// crash ends all processes of the server at once, without a checkpoint.
func (s *testServer) crash() {
	_ = s.process.Signal(syscall.SIGQUIT)
	select {
	case <-s.process.Exited():
	case <-time.After(10 * time.Second):
		s.process.Kill()
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
