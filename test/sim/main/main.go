// Command main runs the simulator with many seeds, shows its progress, and prints a summary.
package main

import (
	"os"

	"github.com/keyward/keyward/test/sim"
)

func main() { os.Exit(sim.Main()) }
