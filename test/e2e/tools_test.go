package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const leasedRules = `domain: edge
descriptors:
  - key: api_key
    metadata: {keyward: {mechanism: lease}}
    rate_limit: {unit: minute, requests_per_unit: 50000}
`

// topped is the part of the output of `keyward top -o json` that this test reads.
type topped struct {
	Members []string `json:"members"`
	Keys    []struct {
		Owner   string  `json:"owner"`
		Domain  string  `json:"domain"`
		Name    string  `json:"name"`
		Rate    float64 `json:"rate"`
		Limit   uint32  `json:"limit"`
		Used    uint64  `json:"used"`
		Lent    uint64  `json:"lent"`
		Holders []struct {
			Member string `json:"member"`
		} `json:"holders"`
		Held []struct {
			Member string `json:"member"`
		} `json:"held"`
	} `json:"keys"`
}

// keepAsking asks every sidecar for one key until the test ends, and returns when all have answered.
func keepAsking(t *testing.T, l *lab.Lab, kv ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var asking, first sync.WaitGroup
	for _, s := range l.Sidecars {
		c := dial(t, s.RLS, nil)
		ask(t, c, request("edge", 1, kv...))
		first.Add(1)
		asking.Go(func() {
			once := sync.OnceFunc(first.Done)
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				_, _ = c.ShouldRateLimit(ctx, request("edge", 1, kv...)) // a member that is busy may be late
				once()
				<-pace.C
			}
		})
	}
	first.Wait()
	t.Cleanup(func() { cancel(); asking.Wait() })
}

// What operators type, against running members: top finds a leased key with its holders, tap shows decisions, hot
// says something about a key by hand and takes it back.
func TestToolsAgainstRunningMembers(t *testing.T) {
	l := newLab(t, lab.Options{Insecure: true, Expect: 3, Rules: map[string]string{"edge.yaml": leasedRules}})
	var pages, sockets []string
	for _, n := range names(3) {
		socket := "unix:" + filepath.Join(l.Dir, n+".sock")
		s, err := l.AddSidecar(n, "--admin", socket)
		if err != nil {
			t.Fatal(err)
		}
		pages, sockets = append(pages, s.Metrics), append(sockets, socket)
	}
	awaitRing(t, l, names(3)...)
	keepAsking(t, l, "api_key", "alice")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tool := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, filepath.Join(l.Bin, "keyward"), args...).CombinedOutput()
		return string(out), err
	}
	top := func(addrs ...string) (f topped, err error) {
		out, err := tool("top", "--once", "-o", "json", "--addr", strings.Join(addrs, ","))
		if err == nil {
			err = json.Unmarshal([]byte(out), &f)
		}
		return f, err
	}
	await := func(what string, cond func() error) {
		t.Helper()
		if err := lab.Await(ctx, what, func(context.Context) error { return cond() }); err != nil {
			t.Fatal(err)
		}
	}
	await("the leased key in top", func() error {
		f, err := top(pages...)
		switch {
		case err != nil:
			return err
		case len(f.Members) != 3 || len(f.Keys) != 1:
			return fmt.Errorf("%+v", f)
		}
		k := f.Keys[0]
		if k.Domain != "edge" || k.Name != "api_key=alice" || k.Limit != 50000 || k.Used == 0 || k.Rate < 100 || len(k.Holders) != 2 || len(k.Held) != 2 || k.Lent > k.Used {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
	if f, err := top(pages[0]); err != nil || len(f.Members) != 3 {
		t.Errorf("the others, which the one that is named knows: %+v %v", f, err)
	}

	out, err := tool("tap", "--admin", sockets[0], "-n", "3", "--rate", "100", "-o", "json", "--key", "api_key=al")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); err != nil || len(lines) != 3 || !strings.Contains(lines[2], `"descriptor":"api_key=alice"`) {
		t.Errorf("tap: %v\n%s", err, out)
	}

	if out, err := tool("hot", "split", "edge", "api_key=alice", "--members", "2", "--admin", sockets[1]); err != nil || !strings.Contains(out, "split over pod-") {
		t.Fatalf("hot split: %v\n%s", err, out)
	}
	listed := func(socket, want string) func() error {
		return func() error {
			out, err := tool("hot", "list", "--admin", socket)
			if err == nil && !strings.Contains(out, want) {
				err = errors.New(out)
			}
			return err
		}
	}
	for _, s := range sockets {
		await("the order at "+s, listed(s, ", manual"))
	}
	if dir := os.Getenv("KEYWARD_RECORD"); dir != "" {
		record(t, dir, pages)
	}
	if out, err := tool("hot", "clear", "edge", "api_key=alice", "--admin", sockets[2]); err != nil {
		t.Fatalf("hot clear: %v\n%s", err, out)
	}
	for _, s := range sockets {
		await("the end of the order at "+s, listed(s, "No key has a route."))
	}
	if out, err := tool("hot", "pin", "edge", "other=alice", "--admin", sockets[0]); err == nil || !strings.Contains(out, "no rule limits") {
		t.Errorf("a key without a rule: %v\n%s", err, out)
	}
}

// record keeps what the members say, for the tests of the tool.
func record(t *testing.T, dir string, pages []string) {
	t.Helper()
	for i, p := range pages {
		for _, what := range []string{"cluster", "v1/hotkeys", "v1/leases"} {
			body, err := lab.Get(t.Context(), "http://"+p+"/"+what)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d.json", filepath.Base(what), i)), body, 0o644)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
}
