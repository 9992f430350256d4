package module

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestUpdateIsRefused checks that Envoy keeps its listener, the connection and the lease when it refuses the next one, because the
// module refuses its configuration, because there is no file of the module, or for a reason behind the module.
func TestUpdateIsRefused(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{dynamic: true, flags: []string{"--drain-time-s", "1"}})
		s.replace(setup{socket: p.path})
		l := p.link(0)
		s.await200("/direct")
		lease := l.segment.lend(0, 100, time.Minute, "app", "api_key=k")
		awaitTrue(t, "a request with a lease", func() bool { s.get("/", "x-key", "k"); return lease.left() < 100 })
		other := listen(t, ordinary(64))
		for i, o := range []setup{
			{socket: p.path, limits: `[{"actions":[{"source_cluster":{}}]}]`},
			{socket: p.path, abi: "absent"},
			{socket: p.path, after: []string{router}},
			{socket: other.path, after: []string{router}},
			{socket: other.path, broken: true},
		} {
			s.replace(o)
			awaitTrue(t, "a refusal", func() bool { return s.stat("listener_manager.lds.update_rejected") == i+1 })
			left := lease.left()
			s.want("status", s.get("/", "x-key", "k"), http.StatusOK)
			s.want("left", int(lease.left()), int(left)-1)
		}
		s.replace(setup{socket: other.path})
		p.await("the end of the connection of the former listener", func() bool { return l.closed })
		other.await("a connection", func() bool { return len(other.conns) > 0 && !other.conns[len(other.conns)-1].closed })
		if r.matcher && r.version != newest.version {
			return // before 1.40, Envoy does not destroy the configuration of a matcher if it refuses what the matcher is for
		}
		s.replace(setup{socket: p.path})
		other.await("the end of its connections", func() bool {
			return !slices.ContainsFunc(other.conns, func(l *link) bool { return !l.closed })
		})
	})
}

// stat returns a counter or gauge of Envoy.
func (s *site) stat(name string) (n int) {
	s.Helper()
	res, err := http.Get("http://" + s.envoy.Admin + "/stats?filter=^" + name + "$")
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = fmt.Fscanf(res.Body, name+": %d", &n)
	return n
}

// TestUpdatesUnderLoad replaces the listener again and again while requests take leases, and ends Envoy under this load. The leases
// admit what they have, no request fails while Envoy runs, and Envoy exits without an error.
func TestUpdatesUnderLoad(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{dynamic: true, workers: 4, flags: []string{"--drain-time-s", "1"}})
		s.replace(setup{socket: p.path})
		l := p.link(0)
		s.await200("/direct")
		const lent = 1 << 20
		lease := l.segment.lend(0, lent, time.Minute, "app", "api_key=k")
		var admitted, failed atomic.Int64
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					c := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxConnsPerHost: 1}}
					defer c.CloseIdleConnections()
					for {
						switch send(c, "http://"+s.envoy.Listener+"/", "x-key", "k") {
						case http.StatusOK:
							admitted.Add(1)
						default:
							failed.Add(1)
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				})
			}
			wg.Wait()
		}()
		for i := range 5 {
			before := admitted.Load()
			s.replace(setup{socket: p.path, route: fmt.Sprintf(`response_headers_to_add: [{header: {key: x-version, value: "%d"}}]`, i)})
			awaitTrue(t, "the new listener", func() bool {
				return s.stat("listener_manager.listener_in_place_updated")+s.stat("listener_manager.listener_modified") >= i+1
			})
			awaitTrue(t, "more requests", func() bool { return admitted.Load() > before+100 })
		}
		awaitTrue(t, "the end of former listeners", func() bool {
			return s.stat("listener_manager.total_filter_chains_draining")+s.stat("listener_manager.total_listeners_draining") == 0
		})
		s.want("requests that failed", int(failed.Load()), 0)
		if _, err := post(s, "/quitquitquit"); err != nil {
			t.Error(err)
		}
		<-s.envoy.Exited()
		close(stop)
		<-done
		if got, most := int64(lent-lease.left()), admitted.Load()+failed.Load(); got < admitted.Load() || got > most {
			t.Errorf("%d hits were taken for %d to %d requests", got, admitted.Load(), most)
		}
		s.want("exit code of Envoy", s.envoy.ExitCode(), 0)
	})
}
