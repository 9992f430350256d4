// Package rlqs tests what Envoy's RLQS client (envoy.filters.http.rate_limit_quota) does with real Envoys of three releases: with a
// server of this package, which does what each test wants. The tests hold the facts that Keyward's quotas depend on, and those that
// docs/upstream reports. `make rlqs` runs them.
//
// Each test has a listener and an RLQS domain of its own in the Envoy of each release, so the tests run side by side: most of them
// wait for reports and for the ends of assignments. No test depends on how long something takes, but on orders and counts.
package rlqs

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

// releases are the Envoys under test, and the variables with the paths of their programs.
var releases = []struct{ version, variable string }{{"1.36.4", "ENVOY_1_36"}, {"1.38.3", "ENVOY_1_38"}, {"1.40.0", "ENVOY_BIN"}}

// long reports whether the tests may take their time, as `make deep` lets them.
func long() bool { return os.Getenv("KEYWARD_LONG") != "" }

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("64") // they wait more than they compute
	}
	for _, r := range releases {
		if os.Getenv(r.variable) == "" {
			fmt.Printf("test/rlqs: skipped: %s is not set; `make rlqs` sets the paths of the Envoys and runs these tests\n", r.variable)
			if os.Getenv("KEYWARD_RLQS") == "required" {
				os.Exit(1)
			}
			return
		}
	}
	lab.ReservePorts = true
	code := m.Run()
	for _, h := range hosts {
		if err := h.stop(); err != nil {
			fmt.Println("test/rlqs:", err)
			code = 1
		}
	}
	os.Exit(code)
}
