package membership

import (
	"testing"
	"time"
)

// TestDetectionByDefault requires that the default has the durations of the versions without --detection, because such
// versions may run in the same cluster.
func TestDetectionByDefault(t *testing.T) {
	for _, d := range []Detection{0, DefaultDetection} {
		for name, x := range map[string][2]time.Duration{
			"Heartbeat":       {d.Heartbeat(), 500 * time.Millisecond},
			"OwnershipTTL":    {d.OwnershipTTL(), 1500 * time.Millisecond},
			"TakeoverDelay":   {d.TakeoverDelay(), 2 * time.Second},
			"MinStall":        {d.MinStall(), 250 * time.Millisecond},
			"Tick":            {d.Tick(), 100 * time.Millisecond},
			"Probe":           {d.Probe(), 500 * time.Millisecond},
			"ProbeTimeout":    {d.ProbeTimeout(), 200 * time.Millisecond},
			"Failover of 3":   {d.Failover(3), 3 * time.Second},
			"Failover of 100": {d.Failover(100), 5 * time.Second},
		} {
			if x[0] != x[1] {
				t.Errorf("%s of %v: %v, want %v", name, time.Duration(d), x[0], x[1])
			}
		}
	}
}

// TestDetectionLaws requires what ownership relies on, over the complete range.
func TestDetectionLaws(t *testing.T) {
	for d := MinDetection; d <= MaxDetection; d += Detection(7 * time.Millisecond) {
		const drift = 1e-3 // of two clocks that NTP slews
		margin := d.TakeoverDelay() - d.OwnershipTTL()
		switch {
		case float64(margin) < drift*float64(d.TakeoverDelay()):
			t.Fatalf("%v: two clocks may drift by the margin of %v", d, margin)
		case d.MinStall() >= margin || 3*d.Heartbeat() > d.OwnershipTTL():
			t.Fatalf("%v: a stop of %v, heartbeats every %v, margin %v", d, d.MinStall(), d.Heartbeat(), margin)
		case d.Tick() > d.Heartbeat()/5 || d.ProbeTimeout() >= d.Probe():
			t.Fatalf("%v: a tick every %v, a probe of %v every %v", d, d.Tick(), d.ProbeTimeout(), d.Probe())
		case d.Validate() != nil:
			t.Fatal(d.Validate())
		}
	}
	for _, d := range []Detection{-1, 1, MinDetection - 1, MaxDetection + 1} {
		if d.Validate() == nil {
			t.Errorf("%v is valid", time.Duration(d))
		}
	}
}
