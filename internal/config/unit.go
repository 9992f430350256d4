package config

import (
	"strconv"
	"strings"
	"time"
)

// Unit is the unit of a limit. Its numbers are those of RateLimitResponse.RateLimit.Unit.
type Unit int32

// The units. A month has 30 days and a year 365; windows begin at multiples of the unit since the Unix epoch.
const (
	UnitUnknown Unit = 0
	Second      Unit = 1
	Minute      Unit = 2
	Hour        Unit = 3
	Day         Unit = 4
	Month       Unit = 5
	Year        Unit = 6
	Week        Unit = 7
)

// String returns the name of the unit in the RLS protocol.
func (u Unit) String() string {
	switch u {
	case UnitUnknown:
		return "UNKNOWN"
	case Second:
		return "SECOND"
	case Minute:
		return "MINUTE"
	case Hour:
		return "HOUR"
	case Day:
		return "DAY"
	case Month:
		return "MONTH"
	case Year:
		return "YEAR"
	case Week:
		return "WEEK"
	}
	return strconv.Itoa(int(u))
}

// hintUnit suggests a unit for an unknown one.
func hintUnit(text string) string {
	var names []string
	for u := Second; u <= Week; u++ {
		names = append(names, strings.ToLower(u.String()))
	}
	if hint := hintWord(strings.ToLower(text), names); hint != "" {
		return hint
	}
	return "want one of " + strings.Join(names, ", ")
}

// Window returns the length of the unit, or 0 if the unit is unknown.
func (u Unit) Window() time.Duration {
	const day = 24 * time.Hour
	switch u {
	case Second:
		return time.Second
	case Minute:
		return time.Minute
	case Hour:
		return time.Hour
	case Day:
		return day
	case Week:
		return 7 * day
	case Month:
		return 30 * day
	case Year:
		return 365 * day
	}
	return 0
}

// unitOf parses a unit, ignoring case. It returns UnitUnknown for an unknown unit.
func unitOf(text string) Unit {
	text = strings.ToUpper(text)
	for u := Second; u <= Week; u++ {
		if u.String() == text {
			return u
		}
	}
	return UnitUnknown
}

// express states a window as a number of units for a response. It uses the unit as written if that divides the window,
// or else the longest unit that does. A window that is not a multiple of a second is UnitUnknown.
func express(window time.Duration, written Unit) (u Unit, times uint32) {
	for _, u := range [...]Unit{written, Day, Hour, Minute, Second} {
		if n := window / max(1, u.Window()); u.Window() > 0 && n > 0 && window%u.Window() == 0 {
			return u, uint32(n)
		}
	}
	return UnitUnknown, 0
}
