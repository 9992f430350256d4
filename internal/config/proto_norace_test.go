//go:build !race

package config

import (
	"math/rand/v2"
	"testing"
)

// TestProtoRoundTripOfAny converts generated rules to resources and back. Only what ToProto reports as lost may change.
func TestProtoRoundTripOfAny(t *testing.T) {
	for seed := range uint64(300) {
		g := generator{rand: rand.New(rand.NewPCG(seed, 5)), metadata: true, middle: true, sound: true}
		rules, err := Load(g.files(), Options{MergeDomains: true})
		if err != nil {
			continue
		}
		resources, lost := rules.ToProto()
		back, err := FromProto(wire(t, resources), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if back.String() != rules.String() || len(lost) == 0 && back.Hash() != rules.Hash() {
			t.Fatalf("\n got %s\nwant %s", back, rules)
		}
	}
}
