package admin

import (
	"math/bits"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/ring"
)

// Sectors is the number of parts of the hash space whose owners /v1/ring lists.
const Sectors = 720

// NewRingMap describes r for drawing. fingerprint is r's, as other documents show it. NewRingMap walks all points of
// the ring, so callers cache the result.
func NewRingMap(r *ring.Ring, fingerprint string) api.RingMap {
	m := api.RingMap{Fingerprint: fingerprint, Members: []api.RingShare{}, Sectors: []int{}}
	shares := map[ring.ID]float64{}
	for _, arc := range ring.Diff(&ring.Ring{}, r) {
		shares[arc.To] += arc.Share()
	}
	for i := range r.Len() {
		at := r.At(i)
		m.Members = append(m.Members, api.RingShare{ID: string(at.ID), Share: shares[at.ID], Weight: at.Weight})
	}
	if r.Len() == 0 {
		return m
	}
	for i := range Sectors {
		m.Sectors = append(m.Sectors, r.Owner(sectorMiddle(i)))
	}
	return m
}

// sectorMiddle returns the hash in the middle of sector i: (2i+1)/(2 x Sectors) of 2^64.
func sectorMiddle(i int) uint64 {
	h, _ := bits.Div64(uint64(2*i+1), 0, 2*Sectors)
	return h
}
