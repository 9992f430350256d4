package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// loads are the numbers of processors that end-to-end tests use. Tests that are not listed use half a processor.
var loads = map[string]float64{
	"TestHotRouteOfMembers":         0.25, // waits for 35 s
	"TestRestartOtherMembers":       0.25, // waits for 35 s
	"TestDiskFaults":                0.25, // waits for 10 s
	"TestDiskFailsAtStart":          0.25, // the same
	"TestApproximate":               1,    // wants no degraded answer
	"TestSlowMemberGetsFewCalls":    1,
	"TestDemo":                      1, // its traffic does not wait, and collapses when it is starved
	"TestHandoffThroughEnvoy":       0.5,
	"TestHotKeyCools":               0.25, // waits for 35 s
	"TestOwnerDirect":               1,
	"TestScaleThroughEnvoy":         1, // the same
	"TestHandoffRolling":            0.5,
	"TestFiveMembers":               1,
	"TestFourThenTen":               0.25,
	"TestNameServiceAndXDSOutage":   0.25,
	"TestSecurityHTTP2GRPC":         1,
	"TestHotRoute":                  1,
	"TestSilenceThroughEnvoy":       1, // the same
	"TestSecurityHTTP2Lean":         1,
	"TestBurstAtANonOwner":          1,
	"TestChurnStaysWithinTheBound":  1,
	"TestDoorEnvoys":                1,
	"TestRoutes":                    1,
	"TestFloodOfKeys":               1,
	"TestDoorConnectionsEnd":        1,
	"TestExactness":                 1,
	"TestSecurityHTTP":              0.25,
	"TestMoveOverStatsd":            0.25,
	"TestRulesSwitchTogether":       0.25,
	"TestGarbageOnEveryPort":        0.25,
	"TestSilentOwnerThroughEnvoy":   0.25,
	"TestNameCollision":             0.25,
	"TestRulesOverXDS":              0.25,
	"TestSecurityGossip":            0.25,
	"TestSecurityGossipSilence":     1,
	"TestRefusedByEnvoy":            0.25,
	"TestSecurityRequests":          0.25,
	"TestBadRulesKeepTheOld":        0.25,
	"TestMoveOverAndBack":           0.25,
	"TestSecurityStrangers":         0.25,
	"TestSilentOwner":               0.25,
	"TestValuesAreBytes":            0.25,
	"TestCertificatesReload":        0.25,
	"TestEnvoyAcceptsWhatIsPrinted": 1,
	"TestSecurityBoundNames":        0.25,
	"TestSecurityPoison":            0.25,
	"TestStrangersAreRefused":       0.25,
	"TestDropIn":                    0.25,
	"TestHostileRequests":           0.25,
	"TestUnixSocketAndRefusedStart": 0.25,
	"TestCheck":                     0.25,
	"TestCheckAgainst":              0.25,
	"TestCheckAndExplainFind":       0.25,
	"TestFixedWindowModel":          0.25,
	"TestDoctorFindsSingles":        0.25,
	"TestSignals":                   0.25,
}

// alone lists the tests during which no other job runs, not even an idle one: TestHotKey sends 8,000 requests a
// second, on time.
var alone = map[string]bool{"TestHotKey": true}

// long lists the longest tests. They start first.
var long = []string{"TestHotKey", "TestRestartOtherMembers", "TestDiskFaults", "TestHotRouteOfMembers", "TestDemo", "TestHandoffThroughEnvoy", "TestHotKeyCools", "TestOwnerDirect", "TestHandoffRolling", "TestApproximate"}

// deepTests lists the tests of the suite deep.
var deepTests = map[string]bool{"TestSoak": true, "TestUpgrade": true, "TestRegionsFigures": true}

func loadOf(name string) float64 {
	if l, ok := loads[name]; ok {
		return l
	}
	return 0.5
}

// byLength orders jobs: long ones first, then those with the highest load.
func byLength(a, b *job) int {
	rank := func(j *job) int {
		if i := slices.Index(long, j.name); i >= 0 {
			return i
		}
		return len(long)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.load, a.load))
}

// known returns an error if a table above names a test that does not exist.
func known(tests []string) error {
	named := slices.Clone(long)
	for _, table := range []map[string]bool{alone, deepTests} {
		for name := range table {
			named = append(named, name)
		}
	}
	for name := range loads {
		named = append(named, name)
	}
	gone := slices.DeleteFunc(named, func(name string) bool { return slices.Contains(tests, name) })
	if len(gone) > 0 {
		slices.Sort(gone)
		return fmt.Errorf("test/run/loads.go names tests that test/e2e does not have: %s", strings.Join(slices.Compact(gone), ", "))
	}
	return nil
}
