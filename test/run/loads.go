package main

import (
	"fmt"
	"slices"
	"strings"
)

// loads are the processors that an end-to-end test keeps busy, where it is not the half that most do.
var loads = map[string]float64{}

// alone are the tests that run beside nothing, not even a job at idle priority.
var alone = map[string]bool{}

// deepTests belong to the suite deep.
var deepTests = map[string]bool{"TestSoak": true}

func loadOf(name string) float64 {
	if l, ok := loads[name]; ok {
		return l
	}
	return 0.5
}

// known returns an error when a table above names a test that there is not.
func known(tests []string) error {
	var gone []string
	for name := range loads {
		gone = append(gone, name)
	}
	for name := range alone {
		gone = append(gone, name)
	}
	for name := range deepTests {
		gone = append(gone, name)
	}
	gone = slices.DeleteFunc(gone, func(name string) bool { return slices.Contains(tests, name) })
	if len(gone) > 0 {
		slices.Sort(gone)
		return fmt.Errorf("test/run/loads.go names tests that test/e2e does not have: %s", strings.Join(gone, ", "))
	}
	return nil
}
