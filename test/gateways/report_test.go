package gateways

import (
	"fmt"
)

// result is the outcome of a case with a gateway.
type result struct {
	gateway, about, name string
	passed               bool
	lacks                string // why the gateway cannot run the case
	figures              string
}

// results are those of this run.
var results []result

// printTable prints the outcomes.
func printTable() {
	for _, r := range results {
		verdict := "green"
		switch {
		case r.lacks != "":
			verdict = "the gateway " + r.lacks
		case !r.passed:
			verdict = "FAILED"
		}
		fmt.Printf("%-15s %-30s %s %s\n", r.gateway, r.name, verdict, r.figures)
	}
}
