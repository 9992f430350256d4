package leasetest

import "testing"

func TestCounter(t *testing.T) { Run(t, func() Harness { return &Counter{} }) }
