package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/durable"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/journal"
)

func newJournalVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "verify DIR",
		Short:   "Check that every block of every journal in a --data directory can be read",
		Long:    helpText("journal-verify"),
		Example: helpExamples("journal-verify"),
		Args:    journalDir,
	}
	output := journalOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		all, err := inspectJournals(args[0], nil)
		if err != nil {
			return err
		}
		report := verifyReportOf(all)
		err = show(cmd.OutOrStdout(), output(), report, report.write)
		if err == nil && !report.OK {
			err = errFailed
		}
		return err
	}
	return cmd
}

// verifyReport is the JSON of `keyward journal verify`. Fields are only ever added.
type verifyReport struct {
	OK       bool            `json:"ok"` // everything that was written can be read
	Journals []verifyJournal `json:"journals"`
	Labels   []verifyLabel   `json:"labels"`
	Blocks   int             `json:"blocks"`
	Bytes    int64           `json:"bytes"`
	verifyDamage
}

// verifyDamage counts what cannot be read.
type verifyDamage struct {
	Damaged    int    `json:"damaged_blocks"` // malformed records included
	Missing    uint64 `json:"missing_blocks"`
	Unreadable int    `json:"unreadable_files"`
}

// verifyJournal is the journal of one boot.
type verifyJournal struct {
	Label       string   `json:"label"` // digest of the cluster's label
	Dir         string   `json:"dir"`
	Member      string   `json:"member,omitempty"` // empty if no header is readable
	Boot        string   `json:"boot,omitempty"`
	Generations []uint32 `json:"generations"`
	Complete    bool     `json:"complete"`  // a generation contains everything that the boot had counted before it
	Clean       bool     `json:"clean"`     // the boot has stopped in good order
	Running     bool     `json:"running"`   // a process writes it
	Removed     bool     `json:"removed"`   // it was removed while it was read
	OtherKeys   bool     `json:"other_key"` // its keys are of another version: members of this version leave it alone
	Files       int      `json:"files"`
	Blocks      int      `json:"blocks"`
	Bytes       int64    `json:"bytes"` // of records
	verifyDamage
	Errors []string `json:"errors"` // each names a file, and an offset if it concerns one
}

// verifyLabel is the last complete ring that the journals of one cluster name.
type verifyLabel struct {
	Label    string    `json:"label"`
	RingAt   time.Time `json:"ring_at"`
	Ring     []string  `json:"ring"`    // names of its members
	NotFound []string  `json:"missing"` // those without a journal in the directory
}

// verifyReportOf summarizes what was found.
func verifyReportOf(all []durable.Inspection) *verifyReport {
	r := &verifyReport{OK: true, Labels: []verifyLabel{}}
	for n := range all {
		i := &all[n]
		j := verifyJournalOf(i)
		r.OK = r.OK && i.OK()
		r.Journals = append(r.Journals, j)
		r.Blocks, r.Bytes = r.Blocks+j.Blocks, r.Bytes+j.Bytes
		r.Damaged, r.Missing, r.Unreadable = r.Damaged+j.Damaged, r.Missing+j.Missing, r.Unreadable+j.Unreadable
	}
	for same := range chunkBy(all, func(i *durable.Inspection) string { return i.Label }) {
		if l, found := verifyLabelOf(same); found {
			r.Labels = append(r.Labels, l)
		}
	}
	return r
}

// chunkBy yields the runs of s with the same key.
func chunkBy[T any, K comparable](s []T, key func(*T) K) func(func([]T) bool) {
	return func(yield func([]T) bool) {
		for len(s) > 0 {
			n := slices.IndexFunc(s, func(x T) bool { return key(&x) != key(&s[0]) })
			if n < 0 {
				n = len(s)
			}
			if !yield(s[:n]) {
				return
			}
			s = s[n:]
		}
	}
}

func verifyJournalOf(i *durable.Inspection) verifyJournal {
	rep := &i.Report
	j := verifyJournal{
		Label: i.Label, Dir: i.Dir, Member: i.Header.Member, Generations: append([]uint32{}, i.Generations...),
		Complete: rep.Complete, Clean: rep.Clean, Running: i.Running, Removed: i.Removed,
		OtherKeys: i.Header.Boot != 0 && i.Header.Scheme != peer.KeyScheme,
		Files:     rep.Files, Blocks: rep.Blocks, Bytes: rep.Bytes, Errors: []string{},
	}
	if i.Boot != 0 {
		j.Boot = fmt.Sprintf("%016x", i.Boot)
	}
	if i.Removed {
		return j
	}
	j.verifyDamage = verifyDamage{rep.BadBlocks + i.Malformed, rep.MissingBlocks, rep.UnreadableFiles}
	for _, err := range rep.Errors {
		j.Errors = append(j.Errors, err.Error())
	}
	if i.Err != nil {
		j.Unreadable++
		j.Errors = append(j.Errors, i.Err.Error())
	}
	return j
}

// verifyLabelOf returns the last ring that the journals of one label name. found is false if none does.
func verifyLabelOf(all []durable.Inspection) (l verifyLabel, found bool) {
	var last *durable.CompleteRing
	here := map[uint64]bool{}
	for n := range all {
		here[all[n].Boot] = true
		if r := all[n].Ring; r != nil && (last == nil || r.At > last.At) {
			last = r
		}
	}
	if last == nil {
		return l, false
	}
	l = verifyLabel{Label: all[0].Label, RingAt: time.Unix(0, last.At).UTC(), Ring: []string{}, NotFound: []string{}}
	byName := func(a, b journal.RingMember) int { return strings.Compare(a.Name, b.Name) }
	for _, m := range slices.SortedFunc(slices.Values(last.Members), byName) {
		l.Ring = append(l.Ring, m.Name)
		if !here[m.Boot] {
			l.NotFound = append(l.NotFound, m.Name)
		}
	}
	return l, true
}

// write writes the report as text: a paragraph for each journal, and the sum on the last line.
func (r *verifyReport) write(out io.Writer) error {
	var b strings.Builder
	for n := range r.Journals {
		r.Journals[n].write(&b)
	}
	for _, l := range r.Labels {
		fmt.Fprintf(&b, "label %s: the last ring, of %s, had %s\n", l.Label, l.RingAt.Format(time.RFC3339), names(l.Ring))
		if len(l.NotFound) > 0 {
			fmt.Fprintf(&b, "  not here: the journals of %s; another directory has them, or a later boot has loaded them\n",
				names(l.NotFound))
		}
	}
	fmt.Fprintf(&b, "%s, %s, %s of records: %s\n",
		count(len(r.Journals), "journal"), count(r.Blocks, "block"), bytesText(r.Bytes), &r.verifyDamage)
	_, err := io.WriteString(out, b.String())
	return err
}

func (j *verifyJournal) write(b *strings.Builder) {
	fmt.Fprintf(b, "%s\n", printable(j.Dir))
	if j.Boot != "" {
		member := "an unknown member"
		if j.Member != "" {
			member = printable(j.Member)
		}
		fmt.Fprintf(b, "  boot %s of %s, %s, %s\n", j.Boot, member, j.generations(), j.state())
	}
	if j.Removed {
		b.WriteString("  removed while it was read: a member has loaded it\n\n")
		return
	}
	fmt.Fprintf(b, "  %s in %s, %s of records: %s\n",
		count(j.Blocks, "block"), count(j.Files, "file"), bytesText(j.Bytes), &j.verifyDamage)
	if j.OtherKeys {
		b.WriteString("  its keys are of another version: members of this version leave it alone\n")
	}
	for _, e := range j.Errors {
		fmt.Fprintf(b, "  %s\n", printable(e))
	}
	if listed := j.Damaged + j.Unreadable; listed > len(j.Errors) {
		fmt.Fprintf(b, "  and %d more\n", listed-len(j.Errors))
	}
	b.WriteString("\n")
}

// generations names the generations with a readable block.
func (j *verifyJournal) generations() string {
	switch n := len(j.Generations); n {
	case 0:
		return "no generation"
	case 1:
		return fmt.Sprintf("generation %d", j.Generations[0])
	default:
		return fmt.Sprintf("generations %d to %d", j.Generations[0], j.Generations[n-1])
	}
}

// state describes how the boot has ended.
func (j *verifyJournal) state() string {
	text := "not complete"
	if j.Complete {
		text = "complete"
	}
	switch {
	case j.Running:
		return text + ", in use by a running member"
	case j.Clean:
		return text + ", stopped in good order"
	}
	return text + ", not stopped in good order"
}

// String describes the damage.
func (d *verifyDamage) String() string {
	if *d == (verifyDamage{}) {
		return "no damage"
	}
	var parts []string
	if d.Damaged > 0 {
		parts = append(parts, count(d.Damaged, "damaged block"))
	}
	if d.Missing > 0 {
		parts = append(parts, count(int(d.Missing), "missing block"))
	}
	if d.Unreadable > 0 {
		parts = append(parts, count(d.Unreadable, "unreadable file"))
	}
	return strings.Join(parts, ", ")
}

// names lists members.
func names(members []string) string {
	var all []string
	for _, m := range members {
		all = append(all, printable(m))
	}
	return strings.Join(all, ", ")
}
