package rlqs

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/test/rlqs/model"
)

// crashed requires that the Envoy of a site ends with a segmentation fault.
func (s *site) crashed() {
	s.Helper()
	select {
	case <-s.envoy.Exited():
	case <-time.After(time.Minute):
		s.Fatal("Envoy runs: has it been mended?")
	}
	if log := s.envoy.Tail(20_000); !strings.Contains(log, "Segmentation fault") {
		s.Errorf("Envoy has not ended with a segmentation fault: %s", log)
	}
}

// A token bucket as no_assignment_behavior crashes Envoy: the first request of an id is admitted, the next one is a segmentation fault.
func TestTokenBucketWithoutAssignmentCrashes(t *testing.T) {
	t.Parallel()
	for _, r := range releases {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			s := own(t, r.version, &listener{name: "own", assign: "token_bucket: {max_tokens: 5, tokens_per_fill: 5, fill_interval: 1s}"})
			c := s.dial(1)[0]
			s.want("first request", s.introduce(c, "a"), 200)
			s.until("a request that is not answered", func() bool { return c.get("a") == 0 })
			s.crashed()
		})
	}
}

// previewMatcher matches requests with x-quota: prime in preview, and those with x-quota: on.
var previewMatcher = "{matcher_list: {matchers: [" +
	"{predicate: {single_predicate: {input: " + header("x-quota") + ", value_match: {exact: prime}}}, on_match: {keep_matching: true, action: {name: a, typed_config: @SETTINGS@}}}, " +
	"{predicate: {single_predicate: {input: " + header("x-quota") + ", value_match: {exact: \"on\"}}}, on_match: {action: {name: b, typed_config: @SETTINGS@}}}]}}"

// keep_matching, a preview, should count and never refuse. Envoy 1.36 crashes at the first request; later releases refuse as soon as the
// previewed bucket is known and empty.
func TestKeepMatching(t *testing.T) {
	t.Parallel()
	for _, r := range releases {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			s := own(t, r.version, &listener{name: "own", assign: denies, matcher: previewMatcher})
			c := s.dial(1)
			if strings.HasPrefix(r.version, "1.36.") {
				s.want("first request", c[0].get("a", "x-quota", "prime"), 0)
				s.crashed()
				return
			}
			s.want("first request, DENY_ALL without an assignment", c[0].get("a", "x-quota", "prime"), 200)
			s.until("a refusal by a preview", func() bool { return c[0].get("a", "x-quota", "prime") == 429 })
			s.push(model.Pair("a", 10, minute)...)
			admitted := 0
			s.until("the lease to be spent", func() bool { admitted += s.hits(c, "a", 5, "x-quota", "prime"); return admitted >= 10 })
			s.want("an empty bucket in preview", s.hits(c, "a", 20, "x-quota", "prime"), 0)
			s.want("requests that no matcher matches", s.hits(c, "a", 10), 10)
		})
	}
}

// The configurations of docs/upstream do what the reports say, without an RLQS server.
func TestReportedConfigurations(t *testing.T) {
	t.Parallel()
	for _, r := range releases {
		old := strings.HasPrefix(r.version, "1.36.")
		for file, want := range map[string][]int{
			"rlqs-token-bucket.envoy.yaml":  {200, 0},
			"rlqs-keep-matching.envoy.yaml": {200, 429, 429},
		} {
			if old && strings.Contains(file, "keep-matching") {
				want = []int{0}
			}
			t.Run(file+"/"+r.version, func(t *testing.T) {
				t.Parallel()
				s := reportedConfig(t, r.version, file)
				c := dial(s.envoy.Listener)
				s.until("the listener", func() bool {
					dialed, err := net.Dial("tcp", s.envoy.Listener)
					if err == nil {
						dialed.Close()
					}
					return err == nil
				})
				for i, status := range want {
					s.until(fmt.Sprint("request ", i), func() bool { return c.get("") == status }) // the id is created after the first answer
				}
				if want[len(want)-1] == 0 {
					s.crashed()
				}
			})
		}
	}
}

// reportedConfig starts an Envoy with a file of docs/upstream.
func reportedConfig(t *testing.T, version, file string) *site {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/upstream", file))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := lab.TempDir("keyward-rlqs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := lab.New(lab.Options{Dir: dir, Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.AddEnvoy(lab.EnvoyOptions{Name: "envoy", Path: program(version), Config: strings.ReplaceAll(string(text), "port_value: 10000", "port_value: @PORT@")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Stop(20 * time.Second) })
	return &site{T: t, host: &host{version: version, lab: l, envoy: e}}
}
