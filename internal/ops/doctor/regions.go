package doctor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// clockTolerance is how far the clocks of a region and its coordinator may differ.
const clockTolerance = 250 * time.Millisecond

// regions checks that members have the same place in a federation, that they reach its coordinators, and that their
// certificates prove their region.
func regions(f *Snapshot, r *report) {
	in := map[string][]string{} // members by place
	for _, m := range f.counters() {
		place := "none"
		epochs := m.Metrics["keyward_federation_newest_epoch"] // a layout that all have read applies to windows that begin later
		if len(epochs) == 0 {
			epochs = m.Metrics["keyward_federation_epoch"]
		}
		for _, s := range epochs {
			place = fmt.Sprintf("region %s of %s, epoch %.0f", s.Labels["region"], s.Labels["federation"], s.Value)
			layoutOf(m, r)
			coordinatorsOf(m, r)
			provesRegion(m, s.Labels["region"], r)
		}
		in[place] = append(in[place], m.Name())
	}
	if len(in) > 1 {
		var all []string
		for place, names := range in {
			slices.Sort(names)
			all = append(all, place+": "+strings.Join(names, ", "))
		}
		slices.Sort(all)
		r.fail("give all members of a cluster the same --region, and the same file of --federation, which they read again when it changes",
			"members have different places in a federation: %s", strings.Join(all, "; "))
	}
	for place := range in {
		if place == "none" {
			r.quiet("limits are this cluster's own")
		}
		r.quiet("all members are in %s", place)
	}
}

// layoutOf checks that a member uses its file of layouts.
func layoutOf(m *MemberReport, r *report) {
	for _, s := range m.Metrics["keyward_federation_layout_refused"] {
		if s.Value > 0 {
			r.fail("correct the file of --federation; the reason is in the member's log. Until then the former layouts remain in force",
				"%s does not use its file of layouts", m.Name())
		}
	}
}

// coordinatorsOf checks the way of a member to its coordinators.
func coordinatorsOf(m *MemberReport, r *report) {
	for _, s := range m.Metrics["keyward_federation_up"] {
		if s.Value == 0 {
			r.fail("check the address in --authority and the network to it; the reason is in the member's log. Meanwhile the outage "+
				"policies of rules decide",
				"%s does not reach the coordinator %s", m.Name(), s.Labels["authority"])
		}
	}
	for _, s := range m.Metrics["keyward_federation_clock_offset_seconds"] {
		if off := time.Duration(s.Value * float64(time.Second)); math.Abs(s.Value) > clockTolerance.Seconds() {
			r.fail("run chrony or ntpd on the nodes of the members and of the coordinator's store",
				"the clock of the coordinator %s is %v ahead of the clock of %s", s.Labels["authority"], off.Round(time.Millisecond), m.Name())
		}
	}
}

// provesRegion checks that a member's certificate names its region, if a coordinator verifies it.
func provesRegion(m *MemberReport, region string, r *report) {
	if m.Self == nil || m.Self.Cert == nil || !strings.Contains(m.flag("authority"), "keyward://") {
		return
	}
	suffix := "/keyward/region/" + region
	if !slices.ContainsFunc(m.Self.Cert.Names, func(name string) bool { return strings.HasSuffix(name, suffix) }) {
		r.fail("issue a certificate with a URI name that ends in "+suffix+", in addition to the members' name",
			"the certificate of %s does not prove that it is in region %s, and the coordinator refuses it", m.Name(), region)
	}
}
