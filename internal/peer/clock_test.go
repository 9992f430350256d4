package peer

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

func TestClockFollows(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	for _, tt := range []struct {
		name string
		off  time.Duration // of the wall
		step time.Duration
	}{
		{"right", 0, 0},
		{"a little ahead", 300 * time.Millisecond, 0},
		{"a little behind", -300 * time.Millisecond, 0},
		{"far ahead", time.Minute, time.Minute},
		{"far behind", -time.Minute, -time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newClock(start, nil)
			const every = 250 * time.Millisecond
			wall := func(mono int64) int64 { return start.UnixNano() + mono + int64(tt.off) }
			var stepped time.Duration
			last := start.UnixNano()
			for mono := int64(every); mono < int64(time.Hour); mono += int64(every) {
				now := c.line.Load().at(mono)
				if d := now - last - int64(every); time.Duration(d).Abs() > every/2000+1 && stepped == 0 && tt.step == 0 {
					t.Fatalf("drifted %v within %v", time.Duration(d), every)
				}
				stepped += c.steer(mono, wall(mono), every)
				last = c.line.Load().at(mono)
				if stepped == 0 && last != now {
					t.Fatalf("jumped from %d to %d", now, last)
				}
			}
			if stepped != tt.step {
				t.Errorf("stepped %v, want %v", stepped, tt.step)
			}
			end := int64(time.Hour)
			if off := time.Duration(wall(end) - c.line.Load().at(end)); off.Abs() > time.Microsecond {
				t.Errorf("still off by %v", off)
			}
		})
	}
}

// Small corrections of the wall clock, in either direction, never make the clock go back.
func TestClockIsMonotone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := newClock(time.Unix(0, 0), nil)
	mono, last := int64(0), int64(0)
	for range 20_000 {
		mono += r.Int64N(int64(time.Second))
		if now := c.line.Load().at(mono); now < last {
			t.Fatalf("went back from %d to %d", last, now)
		}
		off := r.Int64N(int64(maxStep)) - int64(maxStep)/2
		if c.steer(mono, mono+off, 250*time.Millisecond) == 0 {
			last = c.line.Load().at(mono)
		} else {
			last = mono + off
		}
	}
}

func TestClockNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(time.Now(), nil)
		time.Sleep(90 * time.Second)
		if now, want := c.now(), time.Now().UnixNano(); now != want {
			t.Errorf("now is %d, want %d", now, want)
		}
	})
}

func TestDelay(t *testing.T) {
	const ttl = 12 * time.Millisecond
	for _, origin := range []int64{0, int64(time.Hour), int64(240 * time.Hour)} {
		var d delay
		at := func(sent, waited time.Duration) bool {
			return d.tooLate(origin+int64(sent+waited), int64(sent), ttl)
		}
		for i := range 100 {
			if at(time.Duration(i)*time.Second, time.Millisecond) {
				t.Fatalf("a prompt group counts as late, at %d s", i)
			}
		}
		if !at(100*time.Second, 2*time.Second) {
			t.Error("a group that waited for 2 s is not late")
		}
		if at(102*time.Second, 0) {
			t.Error("a prompt group after a late one counts as late")
		}
		// After a pause, requests that waited through it are late although the windows have passed.
		if !at(103*time.Second, 50*time.Second) {
			t.Error("a group that waited for 50 s is not late")
		}
	}
}

// Two clocks that drift apart by 500 ppm for a day never make a group late that arrives promptly.
func TestDelayDrift(t *testing.T) {
	for _, ppm := range []int64{-500, 500} {
		var d delay
		for s := range int64(24 * 3600 * 2) {
			sent := s * int64(time.Second) / 2
			if d.tooLate(sent+sent/1_000_000*ppm, sent, 5*time.Millisecond) {
				t.Fatalf("late after %v at %d ppm", time.Duration(sent), ppm)
			}
		}
	}
}
