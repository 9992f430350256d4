package rulecheck

import "github.com/keyward/keyward/internal/membership"

// DetectionCost describes the consequences of a detection time for a cluster. All times are in seconds.
type DetectionCost struct {
	Detection  float64 `json:"detection_seconds"`
	Heartbeat  float64 `json:"heartbeat_seconds"`      // between two heartbeats of a pair of members
	Ownership  float64 `json:"ownership_ttl_seconds"`  // a member that no other one confirms decides for this long
	Takeover   float64 `json:"takeover_delay_seconds"` // after the last confirmation; before it no other member decides
	Failover   float64 `json:"failover_seconds"`       // about; from the crash of an owner until its successor decides
	Heartbeats float64 `json:"heartbeats_per_second"`  // that each member sends, and as many replies
}

// DetectionCostOf returns the cost of d in a cluster of n members.
func DetectionCostOf(d membership.Detection, n int) DetectionCost {
	beat := d.Heartbeat().Seconds()
	return DetectionCost{
		Detection: d.OrDefault().Seconds(), Heartbeat: beat, Ownership: d.OwnershipTTL().Seconds(),
		Takeover: d.TakeoverDelay().Seconds(), Failover: d.Failover(n).Seconds(), Heartbeats: float64(max(0, n-1)) / beat,
	}
}
