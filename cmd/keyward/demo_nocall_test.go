package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lab"
)

// TestDemoNoCallVerdict requires an error if the Envoys together have admitted more than the limit in a window, or if
// requests failed.
func TestDemoNoCallVerdict(t *testing.T) {
	stage := func() *frugalStage {
		s := &frugalStage{lab: &lab.Lab{}}
		for range frugalEnvoys {
			e := &frugalEnvoy{Envoy: &lab.Envoy{Process: &lab.Process{}}}
			e.free.prepare("", "", 1)
			e.calling.prepare("", "", 1)
			s.envoys = append(s.envoys, e)
		}
		return s
	}
	at := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		happens func(*frugalStage)
		fault   string
	}{
		"at the limit":    {func(s *frugalStage) { s.envoys[0].free.windows[7], s.envoys[2].free.windows[7] = frugalLimit-1, 1 }, ""},
		"above the limit": {func(s *frugalStage) { s.envoys[0].free.windows[7], s.envoys[2].free.windows[7] = frugalLimit, 1 }, "had 1001 and 0"},
		"calls above":     {func(s *frugalStage) { s.envoys[1].calling.windows[7] = frugalLimit + 1 }, "had 0 and 1001"},
		"a failure":       {func(s *frugalStage) { s.envoys[1].free.count(at, at, 503, nil) }, "1 requests failed (status 503"},
		"no answer":       {func(s *frugalStage) { s.envoys[1].free.count(at, at, 0, errors.New("refused")) }, "refused"},
		"over a turn":     {func(s *frugalStage) { s.envoys[0].free.count(at.Add(-time.Second), at, 200, nil) }, ""},
	} {
		s := stage()
		c.happens(s)
		var out strings.Builder
		err := s.verdict(&out)
		if (c.fault == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.fault, out.String())
		}
		if name == "over a turn" && len(s.envoys[0].free.windows) > 0 {
			t.Errorf("a request over the turn of a window counts in %v", s.envoys[0].free.windows)
		}
	}
	s := stage()
	s.envoys[1].free.count(at, at.Add(time.Millisecond), 200, nil)
	var out strings.Builder
	s.draw(t.Context(), &out)
	for _, want := range []string{"WITHOUT CALLS", "1ms", "0 / 1000", "messages/request"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if _, err := config.Load([]config.File{{Name: "demo.yaml", Content: []byte(frugalRules())}}, config.Options{}); err != nil {
		t.Error(err)
	}
}
