package module

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// TestHotRestart lets an Envoy take over the sockets of another one under load. Each has its own connection and lease, every request
// takes one hit of one of them, and both exit without an error.
func TestHotRestart(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path})
		if err := s.envoy.Stop(20 * time.Second); err != nil { // only its configuration is used
			t.Fatal(err)
		}
		epoch := func(name string, args ...string) *lab.Process {
			e, err := lab.StartProcess(t.TempDir(), lab.Spec{
				Name: name, Path: r.program(), Env: []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + modules()},
				Args: append(args, "--config-path", s.envoy.Config, "--drain-time-s", "1", "--parent-shutdown-time-s", "2", "--concurrency", "2", "--log-level", "warning"),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.Kill)
			return e
		}
		base := filepath.Join(t.TempDir(), "base")
		first := epoch("first", "--use-dynamic-base-id", "--base-id-path", base)
		before := p.link(1)
		s.await200("/direct")
		const lent = 1 << 20
		a := before.segment.lend(0, lent, time.Minute, "app", "api_key=k")
		stop, done := make(chan struct{}), make(chan int)
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					done <- n
					return
				default:
				}
				if code := s.get("/", "x-key", "k"); code == http.StatusOK {
					n++
				} else if code != http.StatusTooManyRequests { // until the second one has a lease
					t.Errorf("status %d", code)
				}
			}
		}()
		awaitTrue(t, "leases of the first", func() bool { return a.left() < lent })
		id, err := os.ReadFile(base)
		if err != nil {
			t.Fatal(err)
		}
		second := epoch("second", "--base-id", string(id), "--restart-epoch", "1")
		b := p.link(2).segment.lend(0, lent, time.Minute, "app", "api_key=k")
		select {
		case <-first.Exited():
		case <-time.After(time.Minute):
			t.Fatalf("the first Envoy does not end; log of the second: %s", second.Tail(3000))
		}
		s.want("exit code of the first", first.ExitCode(), 0)
		awaitTrue(t, "leases of the second", func() bool { return b.left() < lent })
		close(stop)
		s.want("admitted", <-done, int(2*lent-a.left()-b.left()))
		p.await("the end of the connection of the first", func() bool { return before.closed })
		if err := second.Stop(20 * time.Second); err != nil {
			t.Errorf("the second: %v", err)
		}
	})
}
