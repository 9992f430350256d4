package membership

import (
	"fmt"
	"math"
	"time"
)

// Detection is the time in which a cluster detects that a member has failed. All other durations of the detection are
// fixed fractions of it. The zero value is DefaultDetection.
//
// Members may differ. For a pair of members the shorter time of the two applies, so ownership never depends on a
// confirmation for longer than both of them allow; see handoff.Options.
type Detection time.Duration

// The range of Detection. Below MinDetection, members that get no CPU time for some hundred milliseconds would lose
// their ownership.
const (
	DefaultDetection = Detection(3 * time.Second)
	MinDetection     = Detection(time.Second)
	MaxDetection     = Detection(30 * time.Second)
)

// Validate returns an error if d is out of range, or not a number of milliseconds, as members announce it. The zero
// value is valid.
func (d Detection) Validate() error {
	if time.Duration(d)%time.Millisecond != 0 {
		return fmt.Errorf("%v is not a whole number of milliseconds", time.Duration(d))
	}
	if d != 0 && (d < MinDetection || d > MaxDetection) {
		return fmt.Errorf("%v is not within %v to %v",
			time.Duration(d), time.Duration(MinDetection), time.Duration(MaxDetection))
	}
	return nil
}

// OrDefault returns d, or DefaultDetection for the zero value.
func (d Detection) OrDefault() Detection {
	if d == 0 {
		return DefaultDetection
	}
	return d
}

// String returns d as a duration.
func (d Detection) String() string { return time.Duration(d.OrDefault()).String() }

// Seconds returns d in seconds.
func (d Detection) Seconds() float64 { return time.Duration(d).Seconds() }

// part returns num/den of d.
func (d Detection) part(num, den time.Duration) time.Duration {
	return time.Duration(d.OrDefault()) * num / den
}

// Heartbeat returns the mean time between two heartbeats; 500 ms by default.
func (d Detection) Heartbeat() time.Duration { return d.part(1, 6) }

// Silence returns for how long a member may send nothing before others get replicas first: two intervals of heartbeats;
// 1 s by default.
func (d Detection) Silence() time.Duration { return 2 * d.Heartbeat() }

// OwnershipTTL (T_own) returns for how long a confirmation by a peer keeps ownership valid; 1.5 s by default.
func (d Detection) OwnershipTTL() time.Duration { return d.part(1, 2) }

// TakeoverDelay (T_take) returns the time after the last confirmation of a failed member at which others may take over
// its keys; 2 s by default. It exceeds OwnershipTTL by far more than two clocks can drift apart in that time.
func (d Detection) TakeoverDelay() time.Duration { return d.part(2, 3) }

// MinStall returns how far a peer's clock must have moved ahead before its heartbeats prove that the local clock
// stopped: half of the difference between TakeoverDelay and OwnershipTTL, 250 ms by default.
func (d Detection) MinStall() time.Duration { return d.part(1, 12) }

// Tick returns how often a member must check its heartbeats and confirmations; 100 ms by default, and at most.
func (d Detection) Tick() time.Duration { return min(100*time.Millisecond, d.part(1, 30)) }

// Probe returns the time between two probes of gossip; 500 ms by default.
func (d Detection) Probe() time.Duration { return d.part(1, 6) }

// ProbeTimeout returns the timeout of a direct probe; 200 ms by default.
func (d Detection) ProbeTimeout() time.Duration { return d.part(1, 15) }

// SuspicionMult is memberlist's suspicion multiplier: the number of probe intervals, times log10 of the number of
// members, for which a suspected member can refute its death.
const SuspicionMult = 4

// Failover returns about how long the keys of a crashed member have no owner, in a cluster of n members: the probe that
// finds it dead, and the time in which it could refute that. Up to ten members it is the detection time itself.
func (d Detection) Failover(n int) time.Duration {
	suspicion := SuspicionMult * max(1, math.Log10(float64(max(1, n)))) * float64(d.Probe())
	return (2*d.Probe() + time.Duration(suspicion)).Round(time.Millisecond)
}
