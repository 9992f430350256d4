package module

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/keyward/keyward/internal/lab"
)

// TestSidecarEnds checks that the module stops spending when the connection ends, and uses the segment of the next one.
func TestSidecarEnds(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path, workers: 2})
		l := p.link(0)
		lease := l.segment.lend(0, 1_000_000, time.Minute, "app", "api_key=k")
		s.service.allow(1 << 30)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					if _, refused := s.burst(4, 100, "x-key", "k"); refused > 0 {
						t.Errorf("%d requests were refused", refused)
					}
				}
			}
		}()
		awaitTrue(t, "requests with leases", func() bool { return lease.left() < 999_900 })
		p.close()
		awaitTrue(t, "calls", func() bool { return len(s.service.take()) > 0 })
		close(stop)
		<-done
		before := lease.left()
		s.burst(4, 50, "x-key", "k")
		s.want("left after the end", int(lease.left()), int(before))
		p.open()
		next := p.link(1)
		again := next.segment.lend(0, 10, time.Minute, "app", "api_key=k")
		awaitTrue(t, "a lease of the next connection", func() bool { s.get("/", "x-key", "k"); return again.left() < 10 })
		s.want("left of the first connection", int(lease.left()), int(before))
	})
}

func awaitTrue(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// TestSegmentsThatAreRefused checks that the module closes a connection whose segment it cannot trust, and tries again.
func TestSegmentsThatAreRefused(t *testing.T) {
	broken := func(slots uint32, seals int, change func(*segment)) func(*peer) *segment {
		return func(*peer) *segment { return newSegment(slots, seals, change) }
	}
	at := func(offset int) func(*segment) { return func(s *segment) { s.bytes[offset] ^= 1 } }
	for name, first := range map[string]func(*peer) *segment{
		"unsealed":        broken(64, 0, nil),
		"shrink unsealed": broken(64, unix.F_SEAL_GROW|unix.F_SEAL_SEAL, nil),
		"seals unsealed":  broken(64, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK, nil),
		"magic":           broken(64, sealed, at(0)),
		"version":         broken(64, sealed, at(8)),
		"slots":           broken(64, sealed, at(12)),
		"few slots":       broken(32, sealed, nil),
		"size":            broken(64, sealed, func(s *segment) { s.size += 32 }),
		"truncated":       broken(64, sealed, func(s *segment) { _ = unix.Ftruncate(s.fd, 4096) }),
		"a file":          func(*peer) *segment { return fileSegment() },
		"no file":         func(*peer) *segment { s := newSegment(64, sealed, nil); s.fd = -1; return s },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var before atomic.Bool
			p := listen(t, func(p *peer) *segment {
				if before.Swap(true) {
					return newSegment(64, sealed, nil)
				}
				return first(p)
			})
			s := start(t, newest, setup{socket: p.path})
			l := p.link(0)
			p.await("the end of the connection", func() bool { return l.closed })
			s.get("/", "x-key", "k")
			s.want("calls", len(s.service.take()), 1)
			next := p.link(1)
			next.segment.lend(0, 1, time.Minute, "app", "api_key=k")
			awaitTrue(t, "a lease of the next connection", func() bool { s.get("/", "x-key", "k"); return len(s.service.take()) == 0 })
		})
	}
}

// fileSegment is an ordinary file, which has no seals.
func fileSegment() *segment {
	f, err := os.CreateTemp("", "segment")
	if err != nil {
		panic(err)
	}
	os.Remove(f.Name())
	s := newSegment(64, 0, nil)
	if _, err := f.Write(s.bytes); err != nil {
		panic(err)
	}
	s.fd = int(f.Fd())
	fd, err := unix.Dup(s.fd)
	if err != nil {
		panic(err)
	}
	f.Close()
	s.fd = fd
	return s
}

// TestCorruptSegment lets workers use a segment that the other side overwrites by random bytes, and by random leases of
// their key. Envoy must survive. What the module admits without a call is at most what the words have offered.
func TestCorruptSegment(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path, workers: 2})
		l := p.link(0)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			b := make([]byte, 4096+64*32)
			lo, hi := l.segment.fingerprint("app", "api_key=k")
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = rand.Read(b)
				for o := 0; o < len(b); o += 8 {
					l.segment.word(o).Store(binary.LittleEndian.Uint64(b[o:]))
				}
				for j := range 8 { // the right key, the rest random
					at := l.segment.slot(int(lo&63) + j)
					l.segment.word(at.at).Store(lo)
					if b[j]&1 == 0 {
						l.segment.word(at.at + 8).Store(hi)
					}
				}
			}
		}()
		s.service.allow(1 << 30)
		n := 2000
		if long() {
			n = 200_000
		}
		admitted, refused := s.burst(8, n, "x-key", "k")
		close(stop)
		<-done
		s.want("admitted", admitted, n)
		s.want("refused", refused, 0)
		if calls := len(s.service.take()); calls == 0 {
			t.Error("no call at all")
		}
	})
}

// TestSilentPeer checks that a peer which announces nothing, and one that is not there, cost no request.
func TestSilentPeer(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, func(*peer) *segment { return nil })
		for _, socket := range []string{p.path, filepath.Join(t.TempDir(), "absent"), strings.Repeat("/long", 100)} {
			s := start(t, r, setup{socket: socket})
			s.service.allow(1)
			s.want("status", s.get("/", "x-key", "k"), http.StatusOK)
			s.want("status", s.get("/", "x-key", "k"), http.StatusTooManyRequests)
		}
	})
}

// TestWrongFile records what each Envoy does with the file of another ABI: it refuses its configuration, or the module
// works.
func TestWrongFile(t *testing.T) {
	works := map[string]bool{"1.38.3 v0_1_0": true, "1.39.3 v0_1_0": true, "1.40.0 v0_2_0": true, "1.36.4 1_36": true,
		"1.40.0 v0_1_0": true, "1.38.3 v0_2_0": true, "1.39.3 v0_2_0": true}
	each(t, func(t *testing.T, r release) {
		for _, abi := range []string{"1_36", "v0_1_0", "v0_2_0"} {
			p := listen(t, ordinary(64))
			s := tryStart(t, r, setup{socket: p.path, abi: abi})
			if !works[r.version+" "+abi] {
				select {
				case <-s.envoy.Exited():
					t.Logf("Envoy %s with the file of %s: %s", r.version, abi, refusal(s.envoy.Tail(4000)))
				case <-time.After(30 * time.Second):
					t.Errorf("Envoy %s takes the file of %s", r.version, abi)
				}
				continue
			}
			l := p.link(0)
			l.segment.lend(0, 1, time.Minute, "app", "api_key=k")
			awaitTrue(t, "a lease", func() bool { s.get("/", "x-key", "k"); return l.segment.counters()[3] == 1 })
			if abi != r.abi {
				t.Logf("Envoy %s with the file of %s: %s", r.version, abi, refusal(s.envoy.Tail(4000)))
			}
		}
	})
}

// refusal returns the line of a log that is about the module.
func refusal(log string) string {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "ynamic module") || strings.Contains(line, "ABI") || strings.Contains(line, "abi") {
			return strings.TrimSpace(line)
		}
	}
	return "nothing logged"
}

// TestConfigurationIsRefused checks that Envoy refuses a configuration that the module cannot honor, and names the field.
func TestConfigurationIsRefused(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		action, why := "source_cluster", "the module has no action source_cluster"
		if r.matcher {
			action, why = "remote_address", "a matcher has no addresses; use the module's filter"
		}
		s := tryStart(t, r, setup{socket: "/s", limits: `[{"actions":[{"` + action + `":{}}]}]`})
		select {
		case <-s.envoy.Exited():
		case <-time.After(30 * time.Second):
			t.Fatal("Envoy takes the configuration")
		}
		if log := s.envoy.Tail(4000); !strings.Contains(log, "limits[0].actions[0]: "+why) {
			t.Errorf("log: %s", log)
		}
	})
}

// TestListenerIsReplaced replaces the listener while a lease is spent. The connection and the lease remain.
func TestListenerIsReplaced(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{dynamic: true})
		s.replace(setup{socket: p.path})
		l := p.link(0)
		s.await200("/direct")
		lease := l.segment.lend(0, 100, time.Minute, "app", "api_key=k")
		s.service.allow(1 << 30)
		awaitTrue(t, "a request with a lease", func() bool { s.get("/", "x-key", "k"); return lease.left() < 100 })
		s.service.take()
		s.burst(2, 39, "x-key", "k")
		s.replace(setup{socket: p.path, route: `response_headers_to_add: [{header: {key: x-version, value: "2"}}]`})
		awaitTrue(t, "the new listener", func() bool {
			res, err := http.Get("http://" + s.envoy.Listener + "/") // without a key: no descriptor
			if err != nil {
				return false
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			return res.Header.Get("x-version") == "2"
		})
		s.want("calls so far", len(s.service.take()), 0)
		s.burst(2, 100, "x-key", "k")
		s.want("calls", len(s.service.take()), 40)
		s.want("left", int(lease.left()), 0)
		p.mu.Lock()
		defer p.mu.Unlock()
		s.want("connections", len(p.conns), 1)
	})
}

// TestEnvoyDrains checks that an Envoy that ends closes the connection, and that a killed one does.
func TestEnvoyDrains(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		for _, kill := range []bool{false, true} {
			p := listen(t, ordinary(64))
			s := start(t, r, setup{socket: p.path, workers: 2})
			l := p.link(0)
			l.segment.lend(0, 100, time.Minute, "app", "api_key=k")
			s.burst(4, 40, "x-key", "k")
			if kill {
				s.envoy.Kill()
			} else {
				if _, err := post(s, "/drain_listeners?graceful"); err != nil {
					t.Fatal(err)
				}
				if err := s.envoy.Stop(20 * time.Second); err != nil {
					t.Errorf("Envoy %s: %v", r.version, err)
				}
			}
			p.await("the end of the connection", func() bool { return l.closed })
		}
	})
}

func post(s *site, path string) (string, error) {
	res, err := http.Post("http://"+s.envoy.Admin+path, "", nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// TestValidation checks that `envoy --mode validate` takes the configuration and ends.
func TestValidation(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path})
		v, err := lab.StartProcess(t.TempDir(), lab.Spec{Name: "validate", Path: r.program(), Args: []string{"--mode", "validate", "--config-path", s.envoy.Config},
			Env: []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + modules()}})
		if err != nil {
			t.Fatal(err)
		}
		<-v.Exited()
		if out := v.Tail(2000); !strings.Contains(out, "OK") {
			t.Errorf("%s", out)
		}
	})
}
