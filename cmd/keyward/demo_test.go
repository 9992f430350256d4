package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// testStage returns a stage without processes, with traffic since the start of the given number of windows.
func testStage(seconds int64) *stage {
	s := &stage{keys: demoKeys(), queue: make(chan act, 1), state: map[string]string{}, names: []string{"a", "b", "c"}}
	s.start = time.Unix(time.Now().Unix()-seconds+1, 0)
	return s
}

// TestDemoOver compares admitted requests with the limits of the windows that they touch.
func TestDemoOver(t *testing.T) {
	start := time.Unix(100, 0)
	k := &demoKey{limit: 5}
	k.allowed.Store(12)
	for now, want := range map[float64]int64{100: 7, 100.9: 7, 101: 2, 102: 0, 200: 0} {
		if got := k.over(start, time.UnixMilli(int64(now*1000))); got != want {
			t.Errorf("at %v: %d above the limit, want %d", now, got, want)
		}
	}
}

// TestDemoVerdict requires an error if requests failed, or were admitted beyond the bound of the crashes.
func TestDemoVerdict(t *testing.T) {
	s := testStage(10)
	var out strings.Builder
	if err := s.verdict(&out); err != nil || !strings.Contains(out.String(), "0 requests allowed, 0 denied, 0 failed; above the limits: 0.") {
		t.Errorf("%v\n%s", err, out.String())
	}
	s.keys[0].allowed.Store(1_000_000)
	if err := s.verdict(&out); err == nil || !strings.Contains(err.Error(), "demo failed") {
		t.Errorf("above the limit: %v", err)
	}
	s.bound = 2_000_000
	if err := s.verdict(&out); err != nil {
		t.Errorf("within the bound of a crash: %v", err)
	}
	s.keys[0].failed.Store(1)
	if err := s.verdict(&out); err == nil {
		t.Error("no error after a failed request")
	}
}

// TestDemoCrashBound requires the bound that `keyward bounds` prints for a rule of 5 per second and three members.
func TestDemoCrashBound(t *testing.T) {
	if small, large := crashBound(&demoKey{limit: 5}, 3), crashBound(&demoKey{limit: 200}, 3); small < 1 || large <= small {
		t.Errorf("%d for 5 per second, %d for 200", small, large)
	}
}

// TestDemoFooter prints the members with their states, the last notes and the keys of the acts.
func TestDemoFooter(t *testing.T) {
	s := testStage(1)
	s.mark("b", "killed")
	for range notesShown + 1 {
		s.note("something happened")
	}
	var b strings.Builder
	s.footer(&b)
	for _, want := range []string{"● a ", "○ b killed", "[h] make a key hot", "[k] kill an owner", "[a] kill all at once", "[q] quit"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if n := strings.Count(b.String(), "something happened"); n != notesShown {
		t.Errorf("%d notes, want %d", n, notesShown)
	}
}

// TestDemoButtons requires that only the demo's own page can start an act, and only one at a time.
func TestDemoButtons(t *testing.T) {
	s := testStage(1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /act/{name}", s.clicked)
	for _, click := range []struct {
		path, header string
		want         int
	}{
		{"/act/kill", "", http.StatusForbidden}, {"/act/none", "1", http.StatusNotFound}, {"/act/kill", "1", http.StatusOK}, {"/act/roll", "1", http.StatusConflict},
	} {
		r := httptest.NewRequest(http.MethodPost, click.path, nil)
		r.Header.Set("X-Keyward-Demo", click.header)
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, r); w.Code != click.want {
			t.Errorf("%s with header %q: %d, want %d", click.path, click.header, w.Code, click.want)
		}
	}
	if a := <-s.queue; a.name != "kill" {
		t.Errorf("queued %q, want kill", a.name)
	}
}

// TestDemoMonth compares a quota with one window, and requires the bound of `keyward bounds --data` for a crash of all
// members.
func TestDemoMonth(t *testing.T) {
	k := &demoKey{name: monthKey, rate: 4, limit: 200}
	k.allowed.Store(203)
	if got := k.over(time.Unix(0, 0), time.Unix(100, 0)); got != 3 {
		t.Errorf("%d above the quota, want 3", got)
	}
	// U + Phi + rate x 200ms
	if got := totalBound(k, 3); got != 2+134+1 {
		t.Errorf("a crash of all adds up to %d hits to the quota", got)
	}
	if got := totalBound(&demoKey{limit: 5}, 3); got != 5+crashWindows*4 {
		t.Errorf("a crash of all adds up to %d hits to windows of a second", got)
	}
}

// TestDemoOutage requires that requests without any sidecar are not failures of the demo.
func TestDemoOutage(t *testing.T) {
	s := testStage(10)
	k := s.keys[0]
	k.down = &s.down
	for _, down := range []bool{true, false} {
		s.down.Store(down)
		k.ask(http.DefaultClient, "127.0.0.1:1")
	}
	if k.missed.Load() != 1 || k.failed.Load() != 1 {
		t.Errorf("%d missed, %d failed", k.missed.Load(), k.failed.Load())
	}
	k.failed.Store(0)
	var out strings.Builder
	if err := s.verdict(&out); err != nil || !strings.Contains(out.String(), "1 requests had no sidecar") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
