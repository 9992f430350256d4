package redis

import (
	"testing"

	"github.com/keyward/keyward/federation/federationtest"
)

func TestContract(t *testing.T) {
	s := startServer(t)
	federationtest.Run(t, s.empty(""))
}

func TestEqualsReference(t *testing.T) {
	s := startServer(t)
	for seed := range uint64(2) {
		federationtest.Compare(t, s.empty(""), seed)
	}
}
