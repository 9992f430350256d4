package federation_test

import (
	"testing"

	"github.com/keyward/keyward/federation/federationtest"
)

func TestMemory(t *testing.T) { federationtest.Run(t, federationtest.Memory) }

func TestMemoryAsStore(t *testing.T) { federationtest.RunStore(t, federationtest.Memory) }
