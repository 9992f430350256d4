package admin

import (
	"math/bits"

	"github.com/keyward/keyward/ring"
)

// Sectors is how many parts of the hash space /v1/ring tells the owners of.
const Sectors = 720

// RingMap is the adopted ring as something to draw.
type RingMap struct {
	Fingerprint string      `json:"fingerprint"`
	Members     []RingShare `json:"members"` // by ID
	// Sectors are equal parts of the hash space, from hash 0 on: the index in Members of who owns each one's middle. A
	// member of weight 1 has 1024 points, so that a sector is seldom one member's alone. Empty when nobody is on the ring.
	Sectors []int `json:"sectors"`
}

// RingShare is one member on the ring.
type RingShare struct {
	ID     string  `json:"id"`
	Share  float64 `json:"share"` // part of the hash space that it owns, 0 to 1
	Weight uint32  `json:"weight"`
	State  string  `json:"state"` // active or leaving; lost: on the ring, and not heard of any more
}

// NewRingMap draws r. fingerprint is how r's stands elsewhere. It walks all points of the ring: keep the result.
func NewRingMap(r *ring.Ring, fingerprint string) RingMap {
	m := RingMap{Fingerprint: fingerprint, Members: []RingShare{}, Sectors: []int{}}
	shares := map[ring.ID]float64{}
	for _, arc := range ring.Diff(&ring.Ring{}, r) {
		shares[arc.To] += arc.Share()
	}
	for i := range r.Len() {
		at := r.At(i)
		m.Members = append(m.Members, RingShare{ID: string(at.ID), Share: shares[at.ID], Weight: at.Weight})
	}
	if r.Len() == 0 {
		return m
	}
	for i := range Sectors {
		m.Sectors = append(m.Sectors, r.Owner(sectorMiddle(i)))
	}
	return m
}

// sectorMiddle is the hash in the middle of sector i: (2i+1)/(2 x Sectors) of 2^64.
func sectorMiddle(i int) uint64 {
	h, _ := bits.Div64(uint64(2*i+1), 0, 2*Sectors)
	return h
}
