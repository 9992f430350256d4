package main

import (
	"math"
	"time"
)

// How members gossip, as package cluster sets memberlist up.
const (
	probeEvery   = 500 * time.Millisecond
	gossipEvery  = 100 * time.Millisecond
	gossipTo     = 4    // members that get news in a round
	packetBytes  = 1400 // of one packet at most
	repeat       = 4    // x ceil(log10(N+1)): how often each member passes one piece of news on
	suspicion    = 4    // x log10(N) x probeEvery: how long a suspected member may object, at least
	announcement = 300  // bytes of one, with all addresses, as it is passed on
	loadEvery    = 15 * time.Second
	loadBytes    = 30 // of what a member says of its load, as it is passed on
	beatEvery    = 500 * time.Millisecond
)

// repeats is how often a member passes one piece of news on.
func repeats(n int) float64 { return repeat * math.Ceil(math.Log10(float64(n+1))) }

// roundsRoom is how many bytes of news a member can send a second.
func roundsRoom() float64 {
	return gossipTo * packetBytes * float64(time.Second/gossipEvery)
}

// LoadNews is the bytes a second that each member passes on of all members' loads, if there is room.
func LoadNews(n int) float64 {
	return float64(n) / loadEvery.Seconds() * repeats(n) * loadBytes
}

// ChangeNews is the bytes that each member sends for one change of the ring: every member announces by which ring it goes,
// and again when it has taken over what is its own.
func ChangeNews(n int) float64 { return 2 * float64(n) * repeats(n) * announcement }

// ChangeTime is how long that fills all that a member may send, in seconds.
func ChangeTime(n int) float64 { return ChangeNews(n) / roundsRoom() }

// Suspicion is the least time in which a member that does not answer is declared dead, once it is suspected.
func Suspicion(n int) time.Duration {
	return time.Duration(suspicion * max(1, math.Log10(float64(n))) * float64(probeEvery)).Round(100 * time.Millisecond)
}

// Beat is the cost of heartbeats for one member: fraction of a core, bytes a second, bytes of memory, streams.
type Beat struct{ CPU, Bytes, Memory, Streams float64 }

// MeshBeat returns the cost for each of n members. The two ends of an exchange cost the same.
func (m MeshCost) MeshBeat(n int) Beat {
	others := float64(n - 1)
	return Beat{CPU: m.CPU * 1e-6 * others, Bytes: m.Bytes * others, Memory: m.Memory * others, Streams: 2 * others}
}

// MeshUpTo is the largest cluster in which the mesh takes no more than so much of a core of each member.
func (m MeshCost) MeshUpTo(cpu float64) int { return 1 + int(cpu*1e6/m.CPU) }

// JoinTime is how long the newcomer's counters take to come, in seconds, of so many in a cluster of n: copies ahead, then the
// counters themselves, which Rate covers, then copies of those whose successor it is, half as much again. Its own end bounds all.
func (h HandoffCost) JoinTime(keys float64, n int) float64 {
	return 1.5 * keys / float64(n) / h.Rate
}

// Kept is the memory of each of n members for so many counters in all: its own, and copies of as many for other owners.
func (h HandoffCost) Kept(keys float64, n int) float64 { return 2 * keys / float64(n) * h.Memory }
