package main

import (
	"fmt"

	"github.com/keyward/keyward/ring"
)

// Sizes are the numbers of members that are looked at.
var Sizes = []int{3, 10, 30, 100, 300, 1000, 2000}

// Member is the i-th of a cluster's members.
func Member(i int) ring.Member {
	id := ring.ID(fmt.Sprintf("keyward-%d", i))
	return ring.Member{ID: id, BootID: ring.Hash("boot of "+string(id)) | 1, Incarnation: 1, Weight: 1}
}

// Members are the first n.
func Members(n int) []ring.Member {
	out := make([]ring.Member, n)
	for i := range out {
		out[i] = Member(i)
	}
	return out
}

// Capacity is the least --ring-capacity for n members of weight 1 that costs Envoy no more than it must: a power of two, at
// least the default.
func Capacity(n int) int { return ring.EnvoyCapacity(max(ring.DefaultCapacity, n+1)) }
