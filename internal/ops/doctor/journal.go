package doctor

import (
	"slices"
	"strings"
)

// journals checks that all members keep the counts of long windows on disk, or none, and that their disks work.
func journals(f *Snapshot, r *report) {
	var with, without []*MemberReport
	for _, m := range f.counters() {
		switch {
		case m.Self == nil:
		case m.flag("data") != "":
			with = append(with, m)
		default:
			without = append(without, m)
		}
	}
	if len(with) == 0 {
		r.ok("no member has --data: all counts are in memory")
		return
	}
	if len(without) > 0 {
		r.warn("set --data on all members: a key's count is on disk only if its owner or its successor has a journal",
			"%s: --data is not set, but %s have it", joinNames(without), joinNames(with))
	}
	for _, name := range []string{"data-window", "data-size"} {
		if by := groups(with, func(m *MemberReport) string { return m.flag(name) }); len(by) > 1 {
			r.warn("set the same value on all members", "--%s differs: %s", name, formatGroups(by))
		}
	}
	for _, m := range with {
		journalOf(m, r)
	}
	missingJournals(with, r)
	r.quiet("the journals of %s can be written", number(len(with), "member"))
}

// journalOf checks the journal of one member.
func journalOf(m *MemberReport, r *report) {
	p, dir := m.Metrics, m.flag("data")
	if up := p["keyward_journal_up"]; len(up) > 0 && up[0].Value == 0 && !m.loading() {
		why := "its disk is full, read-only, failing or stalled"
		if d := m.Self.Data; d != nil && d.Problem != "" {
			why = d.Problem
		}
		r.fail("free or replace the volume, or make it writable; the member tries again every 10 seconds. Until then a "+
			"restart of all members loses what was counted, and durability: strict does not wait for the disk",
			"%s cannot write its journal in %s: %s", m.Name(), dir, why)
	}
	if d := m.Self.Data; d != nil && d.MaxBytes > 0 && float64(d.Bytes) > full*float64(d.MaxBytes) {
		percent := 100 * float64(d.Bytes) / float64(d.MaxBytes)
		r.warn("raise --data-size, or raise --data-window or set durability: memory for rules that need no disk; a full "+
			"journal is not written any more",
			"%s has a journal of %d MiB, %.0f %% of --data-size", m.Name(), d.Bytes>>20, percent)
	}
	if n := p.Sum("keyward_journal_bad_blocks_total"); n > 0 {
		r.warn("check the volume; the member's log names the files, and `keyward journal verify` checks a directory. Each "+
			"block costs the hits since the record before it, unless the successor's journal has them",
			"%s has skipped %s of former journals in %s, which were damaged or missing", m.Name(),
			number(int(n), "block"), dir)
	}
}

// loading reports whether the member has not loaded its journals yet, and so has not begun to write.
func (m *MemberReport) loading() bool { return m.Self.Data != nil && m.Self.Data.State == "loading" }

// missingJournals checks that the journals of all members of the last ring were loaded.
func missingJournals(with []*MemberReport, r *report) {
	most, seen := 0.0, []*MemberReport{}
	for _, m := range with {
		if n := m.Metrics.Sum("keyward_journal_missing"); n > 0 {
			most, seen = max(most, n), append(seen, m)
		}
	}
	if most > 0 {
		r.warn("attach the volumes of the last ring's members and restart the members that have them: what is loaded late is "+
			"added. If they are lost, the limits of their keys may be exceeded until the windows end",
			"no member has loaded %s of the last ring, according to %s", number(int(most), "journal"), joinNames(seen))
	}
}

// joinNames lists the names of members.
func joinNames(all []*MemberReport) string {
	var names []string
	for _, m := range all {
		names = append(names, m.Name())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
