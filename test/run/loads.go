package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// loads are the numbers of processors that end-to-end tests use. Tests that are not listed use half a processor.
var loads = map[string]float64{
	"TestHotRouteOfMembers":             0.25, // waits for 35 s
	"TestHotQuotaOfMembers":             0.25, // waits for two minutes
	"TestRestartOtherMembers":           0.25, // waits for 35 s
	"TestDiskFaults":                    0.25, // waits for 10 s
	"TestDiskFailsAtStart":              0.25, // the same
	"TestApproximate":                   1,    // wants no degraded answer, and reports in time
	"TestSlowMemberGetsFewCalls":        0.75,
	"TestDemo":                          0.75, // its traffic does not wait, and collapses when it is starved
	"TestHandoffThroughEnvoy":           0.5,
	"TestHotKeyCools":                   0.25, // waits for 35 s
	"TestOwnerDirect":                   0.75,
	"TestScaleThroughEnvoy":             0.75, // the same
	"TestHandoffRolling":                0.5,
	"TestFiveMembers":                   1,
	"TestFourThenTen":                   0.25,
	"TestNameServiceAndXDSOutage":       0.25,
	"TestSecurityHTTP2GRPC":             1,
	"TestHotRoute":                      1,
	"TestSilenceThroughEnvoy":           0.5,
	"TestSecurityHTTP2Lean":             1,
	"TestBurstAtANonOwner":              1,
	"TestChurnStaysWithinTheBound":      1,
	"TestDoorEnvoys":                    1,
	"TestRoutes":                        0.75,
	"TestFloodOfKeys":                   0.75,
	"TestDoorConnectionsEnd":            1,
	"TestExactness":                     1,
	"TestSecurityHTTP":                  0.25,
	"TestMoveOverStatsd":                0.25,
	"TestRulesSwitchTogether":           0.25,
	"TestGarbageOnEveryPort":            0.25,
	"TestSilentOwnerThroughEnvoy":       0.25,
	"TestNameCollision":                 0.25,
	"TestRulesOverXDS":                  0.25,
	"TestSecurityGossip":                0.25,
	"TestSecurityGossipSilence":         0.5,
	"TestRefusedByEnvoy":                0.25,
	"TestSecurityRequests":              0.25,
	"TestBadRulesKeepTheOld":            0.25,
	"TestMoveOverAndBack":               0.25,
	"TestSecurityStrangers":             0.25,
	"TestSilentOwner":                   0.25,
	"TestValuesAreBytes":                0.25,
	"TestCertificatesReload":            0.25,
	"TestEnvoyAcceptsWhatIsPrinted":     0.5,
	"TestSecurityBoundNames":            0.25,
	"TestSecurityPoison":                0.25,
	"TestStrangersAreRefused":           0.25,
	"TestDropIn":                        0.25,
	"TestHostileRequests":               0.25,
	"TestUnixSocketAndRefusedStart":     0.25,
	"TestCheck":                         0.25,
	"TestCheckAgainst":                  0.25,
	"TestCheckAndExplainFind":           0.25,
	"TestFixedWindowModel":              0.25,
	"TestDoctorFindsSingles":            0.25,
	"TestSignals":                       0.25,
	"TestAbsentFilesOfXDS":              0.25,
	"TestAuditLog":                      0.25,
	"TestAuditOfMoves":                  0.25,
	"TestBillingInAnOutage":             0.25,
	"TestBrokenMembers":                 0.25,
	"TestDemoLeavesNothing":             0.25,
	"TestDemoRegions":                   0.25,
	"TestEnforcedForAPartOfTheRequests": 0.25,
	"TestFairTenants":                   0.25,
	"TestFullTablesRestart":             0.25,
	"TestHeldJournal":                   0.25,
	"TestLeakyBucketDelaysRequests":     0.25,
	"TestLeasesFromAStore":              0.25,
	"TestLeasesOfAKilledOwner":          0.25,
	"TestLossOfAZone":                   0.25,
	"TestReclaimAfterACrash":            0.25,
	"TestRegionsUnderFaults":            0.25,
	"TestSecurityMemoryHalfOpen":        0.25,
	"TestSecurityMemoryPages":           0.25,
	"TestUsageNeverFalls":               0.25,
}

// alone lists the tests during which no other job runs, not even an idle one: TestHotKey sends 8,000 requests a
// second, on time.
var alone = map[string]bool{"TestHotKey": true}

// long lists the longest tests, the longest first. They start before others of the same load.
var long = []string{
	"TestHotQuotaOfMembers", "TestHotQuotaSwitch", "TestHotKey", "TestBrokenMembers", "TestRegionsUnderFaults", "TestDemoRegions", "TestRestartOtherMembers", "TestDemo", "TestHotRouteOfMembers",
	"TestApproximate", "TestHotKeyCools", "TestHandoffThroughEnvoy", "TestRegions", "TestHandoffRolling", "TestClusterCoordinatesRegions",
	"TestDiskFaults", "TestFullTablesRestart", "TestNameServiceAndXDSOutage", "TestFourThenTen", "TestSecurityRotation", "TestOwnerDirect",
	"TestDemoLeavesNothing", "TestHandoffDetections", "TestSpreadCoordinators", "TestLinearizable", "TestSecurityMemoryHalfOpen", "TestHandoffKilled",
	"TestDoctor", "TestLeasesOfAKilledOwner", "TestLeasesThroughRestarts", "TestAdoptedRing", "TestHandoffPaused", "TestStopAllUnderLoad",
}

// deepTests lists the tests of the suite deep.
var deepTests = map[string]bool{"TestSoak": true, "TestUpgrade": true, "TestUpgradeQuota": true, "TestRegionsFigures": true, "TestQuotaSoak": true}

func loadOf(name string) float64 {
	if l, ok := loads[name]; ok {
		return l
	}
	return 0.5
}

// byLoad orders jobs: those that run alone first, then those with the highest load, and of these the long ones. The others fill
// the rest of the room. In another order, those with a low load would take the room until none of them is left, and the others
// would run one by one at the end.
func byLoad(a, b *job) int {
	alone := func(j *job) int {
		if j.alone {
			return 0
		}
		return 1
	}
	rank := func(j *job) int {
		if i := slices.Index(long, j.name); i >= 0 {
			return i
		}
		return len(long)
	}
	return cmp.Or(cmp.Compare(alone(a), alone(b)), cmp.Compare(b.load, a.load), cmp.Compare(rank(a), rank(b)))
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
