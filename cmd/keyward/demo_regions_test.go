package main

import (
	"net"
	"strings"
	"testing"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/lab"
)

// testRegions returns three regions without processes.
func testRegions(t *testing.T) *regionStage {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	s := &regionStage{queue: make(chan regionAct, 1)}
	for i, name := range regionNames[:3] {
		r := &demoRegion{name: name, admitted: map[int64]int{}, budget: federation.Divide(regionLimit, []uint32{1, 1, 1}, federation.DefaultFloor, i)}
		r.rate.Store(quietRate)
		if r.wan, err = lab.StartWAN(ln.Addr().String(), 0); err != nil {
			t.Fatal(err)
		}
		s.regions = append(s.regions, r)
	}
	s.regions[0].rate.Store(busyRate)
	t.Cleanup(s.close)
	return s
}

// TestDemoRegionsVerdict requires an error if the regions together have admitted more than the limit in a window, or if
// requests failed.
func TestDemoRegionsVerdict(t *testing.T) {
	s := testRegions(t)
	var out strings.Builder
	s.regions[0].admitted[7], s.regions[2].admitted[7] = regionLimit-1, 1
	s.regions[1].admitted[8] = regionLimit
	if err := s.verdict(&out); err != nil || !strings.Contains(out.String(), "The most of one window: 300 of 300.") {
		t.Errorf("%v\n%s", err, out.String())
	}
	s.regions[1].admitted[7] = 1
	if err := s.verdict(&out); err == nil || !strings.Contains(err.Error(), "a window of 300 had 301") {
		t.Errorf("above the limit: %v", err)
	}
	s.regions[1].admitted[7], s.regions[1].failed = 0, 1
	if err := s.verdict(&out); err == nil {
		t.Error("no error after a failed request")
	}
}

// TestDemoRegionsKeys presses the keys: the busiest region is cut off and healed, and the demand moves.
func TestDemoRegionsKeys(t *testing.T) {
	s := testRegions(t)
	press := func(key byte) {
		s.press(key)
		(<-s.queue).do(s, t.Context())
	}
	press('m')
	if s.busiest() != 1 || s.regions[0].rate.Load() != quietRate {
		t.Errorf("the busiest region is %d", s.busiest())
	}
	press('c')
	var b strings.Builder
	s.draw(&b)
	if !s.regions[1].cut.Load() || s.regions[0].cut.Load() || strings.Count(b.String(), "cut off the coordinator") != 1 {
		t.Errorf("after a cut:\n%s", b.String())
	}
	press('m') // a later move does not change which one is healed
	press('c')
	for _, r := range s.regions {
		if r.cut.Load() {
			t.Errorf("%s is still cut off", r.name)
		}
	}
	for _, want := range []string{"eu             6      5", "us            60      5", "together                      0 / 300", "[c] cut the busiest", "[q] quit", "us is cut off: it has its floor of 5"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if len(s.notes) != 4 {
		t.Errorf("%d notes: %q", len(s.notes), s.notes)
	}
}
