package config

import (
	"testing"
	"time"
)

func TestExpress(t *testing.T) {
	for _, row := range []struct {
		window time.Duration
		unit   Unit
		stated Unit
		times  uint32
	}{
		{time.Minute, Minute, Minute, 1},
		{time.Minute, Hour, Minute, 1},
		{time.Minute, Second, Second, 60},
		{10 * time.Second, Minute, Second, 10},
		{90 * time.Minute, Day, Minute, 90},
		{48 * time.Hour, Second, Second, 172800},
		{48 * time.Hour, Week, Day, 2},
		{14 * 24 * time.Hour, Week, Week, 2},
		{maxWindow, Second, Second, 31536000},
		{500 * time.Millisecond, Second, UnitUnknown, 0},
		{1500 * time.Millisecond, Second, UnitUnknown, 0},
		{0, UnitUnknown, UnitUnknown, 0},
	} {
		if stated, times := express(row.window, row.unit); stated != row.stated || times != row.times {
			t.Errorf("%v by the %v: %d %v", row.window, row.unit, times, stated)
		}
	}
}

func TestUnits(t *testing.T) {
	seconds := map[Unit]int{Second: 1, Minute: 60, Hour: 3600, Day: 86400, Week: 604800, Month: 30 * 86400, Year: 365 * 86400}
	for u := Unit(-1); u < 10; u++ {
		if got := int(u.Window().Seconds()); got != seconds[u] {
			t.Errorf("%s: %d s", u, got)
		}
		if back := unitOf(u.String()); (seconds[u] > 0) != (back == u && u != UnitUnknown) {
			t.Errorf("%s reads as %s", u, back)
		}
	}
}
