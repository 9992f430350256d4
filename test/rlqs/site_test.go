package rlqs

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/test/rlqs/model"
)

// host is one Envoy of a release with its servers.
type host struct {
	version string
	dir     string
	once    sync.Once
	err     error // of once
	lab     *lab.Lab
	envoy   *lab.Envoy
	app     *httptest.Server
	quota   *server // of all listeners but those that name another one
	refuser *server // the cluster "refuser": TestRefusedStreamsLoseUsage stops and starts it
	fence   *fence  // the cluster "fence"
	ports   map[string]string
}

// hosts are the shared Envoys by release.
var hosts = func() map[string]*host {
	all := map[string]*host{}
	for _, r := range releases {
		all[r.version] = &host{version: r.version}
	}
	return all
}()

func program(version string) string {
	for _, r := range releases {
		if r.version == version {
			return os.Getenv(r.variable)
		}
	}
	return ""
}

// start starts the servers and an Envoy with these listeners.
func (h *host) start(ctx context.Context, ls []*listener) (err error) {
	if h.dir, err = lab.TempDir("keyward-rlqs-"); err != nil {
		return err
	}
	if h.lab, err = lab.New(lab.Options{Dir: h.dir, Insecure: true}); err != nil {
		return err
	}
	h.app = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if h.quota, err = startServer("127.0.0.1:0"); err != nil {
		return err
	}
	var ports lab.Ports
	addr, err := ports.Addr()
	if err != nil {
		return err
	}
	if h.refuser, err = startServer(addr); err != nil {
		return err
	}
	if h.fence, err = startFence(); err != nil {
		return err
	}
	h.ports = map[string]string{}
	for _, l := range ls {
		addr, err := ports.Addr()
		if err != nil {
			return err
		}
		_, h.ports[l.name], _ = strings.Cut(addr, ":")
	}
	if err := h.move(1, ls); err != nil {
		return err
	}
	config := bootstrap(h.dir, h.ports, ls, lab.StaticCluster("quota", h.quota.addr, true), lab.StaticCluster("refuser", h.refuser.addr, true),
		lab.StaticCluster("fence", h.fence.addr, true), lab.StaticCluster("app", h.app.Listener.Addr().String(), false))
	h.envoy, err = h.lab.AddEnvoy(lab.EnvoyOptions{Name: "envoy", Path: program(h.version), Concurrency: 4, Config: config})
	if err != nil {
		return err
	}
	return h.envoy.Await(ctx, "app", 1)
}

// move writes the listeners that move. Envoy reads the file when it is renamed.
func (h *host) move(version int, ls []*listener) error {
	file := filepath.Join(h.dir, "lds.yaml")
	if err := os.WriteFile(file+".new", []byte(moved(version, h.ports, ls)), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// stop ends the Envoy, if it was started. A crash is an error.
func (h *host) stop() error {
	if h.envoy == nil {
		return nil
	}
	var err error
	if !h.envoy.Running() {
		err = fmt.Errorf("envoy %s has ended by itself: %s", h.version, h.envoy.Tail(4000))
	} else {
		err = h.envoy.Stop(20 * time.Second)
	}
	h.app.Close()
	h.quota.grpc.Stop()
	h.refuser.grpc.Stop()
	_ = os.RemoveAll(h.dir)
	return err
}

// site is a listener of one release's Envoy with its server.
type site struct {
	*testing.T
	*host
	*listener
	addr   string
	server *server
	marker bool // what the marker's requests get, as assigned last
}

// each runs a test with the Envoy of each release, side by side.
func (l *listener) each(t *testing.T, run func(s *site)) {
	t.Parallel()
	for _, r := range releases {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			h := hosts[r.version]
			h.once.Do(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the Envoy outlives this test
				defer cancel()
				h.err = h.start(ctx, listeners)
			})
			if h.err != nil {
				t.Fatal(h.err)
			}
			run(h.site(t, l))
		})
	}
}

// own starts an Envoy for one test, which may crash or stop it.
func own(t *testing.T, version string, l *listener) *site {
	t.Helper()
	h := &host{version: version}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.start(ctx, []*listener{l}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if h.envoy.Running() {
			_ = h.stop()
		}
	})
	return h.site(t, l)
}

func (h *host) site(t *testing.T, l *listener) *site {
	s := &site{T: t, host: h, listener: l, addr: "127.0.0.1:" + h.ports[l.name], server: h.quota, marker: l.assign != denies}
	if l.server == "refuser" {
		s.server = h.refuser
	}
	t.Cleanup(func() {
		if t.Failed() && !h.envoy.Running() {
			t.Logf("envoy %s has ended: %s", h.version, h.envoy.Tail(4000))
		}
	})
	return s
}

// push sends a response on the stream of the site's domain.
func (s *site) push(as ...model.Action) {
	s.Helper()
	s.server.stream(s, s.domainName()).send <- response(as)
}

// await waits for messages of the site's domain.
func (s *site) await(what string, cond func([]report) bool) []report {
	s.Helper()
	return s.server.await(s, s.domainName(), what, cond)
}

// reports returns the messages so far.
func (s *site) reports() (all []report) {
	return s.await("nothing", func([]report) bool { return true })
}

// introduce sends the first request of an id and waits until the server has its report. It returns the status.
func (s *site) introduce(c *conn, id string) int {
	s.Helper()
	status := c.get(id)
	s.await("the first report of "+id, func(all []report) bool {
		for _, r := range all {
			if _, ok := r.find(id); ok {
				return true
			}
		}
		return false
	})
	return status
}

// tick waits until the next report of all ids and returns the messages.
func (s *site) tick() []report {
	s.Helper()
	known := len(s.reports())
	return s.await("a report of all ids", func(all []report) bool { return len(all) > known })
}

// markerID is an id whose assignment shows which response a worker uses.
const markerID = "marker"

// fenced sends a response and waits until the workers of all connections use it. A response reaches a worker as one.
func (s *site) fenced(conns []*conn, as ...model.Action) {
	s.Helper()
	if _, ok := s.known(markerID); !ok {
		s.introduce(conns[0], markerID)
	}
	s.marker = !s.marker
	kind, want := model.DenyAll, http.StatusTooManyRequests
	if s.marker {
		kind, want = model.AllowAll, http.StatusOK
	}
	s.push(append(as, model.Action{ID: markerID, Strategy: model.Strategy{Kind: kind}, TTL: time.Hour})...)
	for _, c := range conns {
		s.until("the marker's assignment", func() bool { return c.get(markerID) == want })
	}
}

// known returns the total usage of an id in the messages, and whether any has it.
func (s *site) known(id string) (u model.ReportedUsage, ok bool) {
	all := s.reports()
	for _, r := range all {
		if _, found := r.find(id); found {
			return total(all, id), true
		}
	}
	return u, false
}

// until polls cond for at most a minute.
func (s *site) until(what string, cond func() bool) {
	s.Helper()
	for end := time.Now().Add(time.Minute); !cond(); {
		if time.Now().After(end) {
			s.Fatalf("waited a minute for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// want compares a count.
func (s *site) want(what string, got, want int) {
	s.Helper()
	if got != want {
		s.Errorf("%s: %d, want %d", what, got, want)
	}
}

// logged requires a text in Envoy's log.
func (s *site) logged(text string) {
	s.Helper()
	b, err := os.ReadFile(s.envoy.Log)
	if err != nil {
		s.Fatal(err)
	}
	if !strings.Contains(string(b), text) {
		s.Errorf("Envoy has not logged %q", text)
	}
}
