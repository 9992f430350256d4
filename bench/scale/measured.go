package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// Measured holds the figures that were measured, as opposed to calculated. They are kept in testdata/measured.json, from which
// the page is written, until they are measured again.
type Measured struct {
	Machine string
	Rings   []RingCost
	Envoys  []EnvoyCost
	Pushes  []PushCost
	Gossips []GossipCost
	Meshes  []MeshCost
	Handoff []HandoffCost
	Dates   map[string]string // of the day, by what was measured
}

// RingCost is one build of the ring that every member keeps.
type RingCost struct {
	Members int
	Millis  float64 // CPU of one build
	Bytes   float64 // of the ring itself
	Garbage float64 // bytes that building it leaves behind
}

// EnvoyCost is the cost of the ring in a real Envoy.
type EnvoyCost struct {
	Members, Capacity int
	Bytes             float64 // resident after some changes, beyond an Envoy without the cluster
	Millis            float64 // CPU of one change of the endpoints, which its main thread makes
}

// PushCost is the cost of sending one change of the members to Envoys.
type PushCost struct {
	Members, Envoys int
	Bytes           float64 // of the one response
	Millis          float64 // CPU of the server and of the streams' other ends, which do no more than acknowledge
	Wall            float64 // milliseconds from the change to the last Envoy having it
}

// GossipCost is the gossip of one cluster in one process, on loopback.
type GossipCost struct {
	Members int
	Bytes   float64 // a second that each member sends, idle, headers included
	Packets float64 // a second that each member sends, idle
	CPU     float64 // parts of a core that each member takes, idle
	Change  float64 // bytes that each member sends for one join, idle traffic apart
	Adopted float64 // seconds from a join until all members use its ring
	Known   float64 // and until all members know that all of them have taken over
	Lost    float64 // seconds from a crash until all members use the ring without it
}

// MeshCost is the heartbeats of members that are all connected, idle, in one process.
type MeshCost struct {
	Members    int
	Bytes      float64 // a second that each member sends to each other one, headers included
	Packets    float64 // a second that each member sends to each other one
	CPU        float64 // microseconds a second that each member spends for each other one
	Memory     float64 // bytes of heap and stacks that each member has for each other one
	Goroutines float64 // that each member has for each other one
}

// HandoffCost is a join that takes nearly all counters of the only other member, in one process on loopback.
type HandoffCost struct {
	Counters int     // that changed their owner
	Bytes    float64 // on the wire for each, headers included: the copy ahead and the move
	Rate     float64 // of them a second, both
	CPU      float64 // microseconds of both members for each
	Memory   float64 // bytes of the owner's heap for each
}

// Load reads what was measured.
func Load(file string) (m Measured, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	return m, nil
}

// Save keeps it.
func (m Measured) Save(file string) error {
	b, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
