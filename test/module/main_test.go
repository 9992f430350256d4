// Package module tests the dynamic module of envoy/module/rust with real Envoys of four releases. The other end of the
// module's socket is a peer of this package, which writes what a test wants into the segment. `make module` runs the tests.
package module

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

// release is an Envoy under test.
type release struct {
	version  string
	variable string // with the path of its program
	abi      string // of the module's file for it
	name     string // of the ABI in HELLO
	matcher  bool   // the module is a matcher of the rate limit filter, and not a filter before it
}

var releases = []release{
	{version: "1.36.4", variable: "ENVOY_1_36", abi: "1_36", name: "1.36"},
	{version: "1.38.3", variable: "ENVOY_1_38", abi: "v0_1_0", name: "v0.1.0"},
	{version: "1.39.3", variable: "ENVOY_1_39", abi: "v0_1_0", name: "v0.1.0"},
	{version: "1.40.0", variable: "ENVOY_BIN", abi: "v0_2_0", name: "v0.2.0"},
}

// newest is the Envoy of tests that need no other.
var newest = releases[len(releases)-1]

// asMatcher returns the release with the module as a matcher.
func (r release) asMatcher() release {
	r.matcher = true
	return r
}

// withMatchers returns the releases, and again those of the first and the last ABI that has matchers, with the module as one.
func withMatchers() []release {
	return append(slices.Clone(releases), releases[1].asMatcher(), newest.asMatcher())
}

// String returns the version and how the module is configured.
func (r release) String() string {
	if r.matcher {
		return r.version + "-matcher"
	}
	return r.version
}

// another returns an action and the entry that it makes for each request: the address, which a matcher does not have.
func (r release) another() (action, entry string) {
	if r.matcher {
		return `{"generic_key":{"descriptor_value":"all"}}`, "generic_key=all"
	}
	return `{"remote_address":{}}`, "remote_address=127.0.0.1"
}

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

// each runs a test with the Envoy of each release, and with the module as filter and as matcher, side by side.
func each(t *testing.T, run func(t *testing.T, r release)) {
	t.Parallel()
	for _, r := range withMatchers() {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			run(t, r)
		})
	}
}
