package handoff

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// heartbeats simulates peers whose clocks differ by offsets from the local one, on a network with random delays.
type heartbeats struct {
	m       *Machine
	c       *cluster
	rnd     *rand.Rand
	offsets map[ring.ID]int64
	delay   int64 // maximum in each direction
}

func newHeartbeats(t *testing.T, peers int, delay time.Duration) *heartbeats {
	ids := []ring.ID{"a"}
	for i := range peers {
		ids = append(ids, ring.ID(fmt.Sprintf("p%d", i)))
	}
	c := newCluster(t, ids...)
	h := &heartbeats{c: c, m: c.machines["a"], offsets: map[ring.ID]int64{}, delay: int64(delay)}
	h.rnd = rand.New(rand.NewPCG(1, 2))
	for i, id := range ids[1:] {
		h.offsets[id] = int64(i-1) * int64(3*time.Second)
	}
	return h
}

// beat processes a reply and a ping of id, and returns the stall that they prove.
func (h *heartbeats) beat(id ring.ID) time.Duration {
	there, back := h.rnd.Int64N(h.delay), h.rnd.Int64N(h.delay)
	stamp := h.c.now - back + h.offsets[id]
	pong := protocol.Message{Kind: protocol.Pong, Sent: h.c.now - back - there, Now: stamp}
	ping := protocol.Message{Kind: protocol.Ping, Sent: stamp, Now: stamp}
	return max(h.m.ClockStall(h.c.now, id, h.c.bootID(id), &pong), h.m.ClockStall(h.c.now, id, h.c.bootID(id), &ping))
}

// round is one heartbeat with each peer, half a second after the previous one.
func (h *heartbeats) round() (stood time.Duration) {
	h.c.now += 500 * ms
	for id := range h.offsets {
		stood = max(stood, h.beat(id))
	}
	return stood
}

// TestSlewedClocksDoNotJump requires that neither a slow network nor clocks that NTP slews in one direction prove a
// stall.
func TestSlewedClocksDoNotJump(t *testing.T) {
	for _, delay := range []time.Duration{time.Millisecond, 400 * time.Millisecond} {
		h := newHeartbeats(t, 3, delay)
		for i := range 2 * 3600 {
			if d := h.round(); d != 0 {
				t.Fatalf("round %d: stalled for %v", i, d)
			}
			for id := range h.offsets {
				h.offsets[id] += 500 * ms / 1000 // the local clock is slewed in the other direction
			}
		}
	}
}

// TestPeersProveThatTheClockStalled requires that the clocks of two thirds of the peers jump together.
func TestPeersProveThatTheClockStalled(t *testing.T) {
	for _, tt := range []struct {
		peers, jump int
		by          time.Duration
		want        bool
	}{
		{1, 1, time.Second, true},
		{1, 1, 240 * time.Millisecond, false},
		{1, 1, -time.Second, false},
		{2, 1, 9 * time.Second, false},
		{2, 2, 9 * time.Second, true},
		{2, 2, -9 * time.Second, false},
		{3, 1, 9 * time.Second, false},
		{3, 2, 9 * time.Second, true},
		{4, 2, 9 * time.Second, false},
		{9, 5, 9 * time.Second, false},
		{9, 6, 9 * time.Second, true},
	} {
		t.Run(fmt.Sprintf("%d of %d by %v", tt.jump, tt.peers, tt.by), func(t *testing.T) {
			h := newHeartbeats(t, tt.peers, 5*time.Millisecond)
			for range 10 {
				h.round()
			}
			for i := range tt.jump {
				h.offsets[ring.ID(fmt.Sprintf("p%d", i))] += int64(tt.by)
			}
			stood := max(h.round(), h.round())
			if tt.want != (stood > 0) || tt.want && (stood > tt.by || tt.by-stood > 20*time.Millisecond) {
				t.Errorf("stalled for %v", stood)
			}
			if !tt.want {
				for range 100 {
					if d := h.round(); d != 0 {
						t.Fatalf("stalled for %v later", d)
					}
				}
			}
		})
	}
}

// TestClocksThatJumpInTurn requires that peers whose clocks are set one after the other prove nothing.
func TestClocksThatJumpInTurn(t *testing.T) {
	h := newHeartbeats(t, 3, 5*time.Millisecond)
	for i := range 60 {
		if i%10 == 5 {
			h.offsets[ring.ID(fmt.Sprintf("p%d", i/10%3))] += int64(2 * time.Second)
		}
		if d := h.round(); d != 0 {
			t.Fatalf("round %d: stalled for %v", i, d)
		}
	}
}

// TestSilentPeersDoNotCount requires that a silent peer does not affect the others' majority.
func TestSilentPeersDoNotCount(t *testing.T) {
	h := newHeartbeats(t, 3, 5*time.Millisecond)
	for range 10 {
		h.round()
	}
	for _, id := range []ring.ID{"p1", "p2"} {
		delete(h.offsets, id)
	}
	for range 4 {
		h.round()
	}
	h.offsets["p0"] += int64(9 * time.Second)
	if d := h.round(); d == 0 {
		t.Error("no stall is reported with one peer of three left")
	}
}

// TestRevokeAllForgetsClocks requires that RevokeAll, as after a step of the local clock, discards the offsets.
func TestRevokeAllForgetsClocks(t *testing.T) {
	h := newHeartbeats(t, 2, 5*time.Millisecond)
	for range 10 {
		h.round()
	}
	h.m.RevokeAll(h.c.now)
	for id := range h.offsets {
		h.offsets[id] += int64(9 * time.Second)
	}
	for range 10 {
		if d := h.round(); d != 0 {
			t.Fatalf("stalled for %v", d)
		}
	}
	for id := range h.offsets {
		h.offsets[id] += int64(9 * time.Second)
	}
	if h.round() == 0 {
		t.Error("no stall is reported the second time")
	}
}
