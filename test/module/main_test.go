// Package module tests the dynamic module of envoy/module/rust with real Envoys of four releases. The other end of the
// module's socket is a peer of this package, which writes what a test wants into the segment. `make module` runs the tests.
package module

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

// release is an Envoy under test.
type release struct {
	version  string
	variable string // with the path of its program
	abi      string // of the module's file for it
	name     string // of the ABI in HELLO
}

var releases = []release{
	{"1.36.4", "ENVOY_1_36", "1_36", "1.36"},
	{"1.38.3", "ENVOY_1_38", "v0_1_0", "v0.1.0"},
	{"1.39.3", "ENVOY_1_39", "v0_1_0", "v0.1.0"},
	{"1.40.0", "ENVOY_BIN", "v0_2_0", "v0.2.0"},
}

// newest is the Envoy of tests that need no other.
var newest = releases[len(releases)-1]

func (r release) program() string { return os.Getenv(r.variable) }

// modules is the folder with the module's files.
func modules() string { return os.Getenv("KEYWARD_MODULES") }

// long reports whether the tests may take their time, as `make deep` lets them.
func long() bool { return os.Getenv("KEYWARD_LONG") != "" }

func TestMain(m *testing.M) {
	flag.Parse()
	needed := []string{"KEYWARD_MODULES"}
	for _, r := range releases {
		needed = append(needed, r.variable)
	}
	for _, name := range needed {
		if os.Getenv(name) == "" {
			fmt.Printf("test/module: skipped: %s is not set; `make module` builds the module with cargo and runs these tests\n", name)
			if os.Getenv("KEYWARD_MODULE") == "required" {
				os.Exit(1)
			}
			return
		}
	}
	lab.ReservePorts = true
	os.Exit(m.Run())
}

// each runs a test with the Envoy of each release, side by side.
func each(t *testing.T, run func(t *testing.T, r release)) {
	t.Parallel()
	for _, r := range releases {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			run(t, r)
		})
	}
}
