package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/durable"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
)

func newJournalShow() *cobra.Command {
	var key, at string
	cmd := &cobra.Command{
		Use:     "show DIR",
		Short:   "Print the counters that the journals in a --data directory contain",
		Long:    helpText("journal-show"),
		Example: helpExamples("journal-show"),
		Args:    journalDir,
	}
	output := journalOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s := journalCounters{prefix: strings.ToLower(key), counters: map[journalKey]*journalCounter{}}
		now, err := s.parse(key, at)
		if err != nil {
			return err
		}
		all, err := inspectJournals(args[0], s.add)
		if err != nil {
			return err
		}
		report := s.report(all, now)
		if err := show(cmd.OutOrStdout(), output(), report, report.write); err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(i durable.Inspection) bool { return !i.OK() }) {
			fmt.Fprintf(cmd.ErrOrStderr(), "some blocks cannot be read: keyward journal verify %s\n", args[0])
		}
		if key != "" && len(report.Counters) == 0 {
			return fmt.Errorf("no journal has a counter with the key %s that counts at %s", key, now.UTC().Format(time.RFC3339))
		}
		return nil
	}
	cmd.Flags().StringVar(&key, "key", "", "`digest` of a key, or its first digits: print this counter only")
	cmd.Flags().StringVar(&at, "at", "", "print the counts at this `time`, such as 2026-11-24T15:00:00Z (default: now)")
	return cmd
}

// journalKey identifies a counter of a cluster.
type journalKey struct {
	label string
	key   [2]uint64
}

func (k journalKey) digest() string { return fmt.Sprintf("%016x%016x", k.key[0], k.key[1]) }

// journalCounter is a counter as all journals together contain it.
type journalCounter struct {
	rule  limit.Rule // of the newest record
	at    time.Time  // when the generation of that record began
	state limit.State
	ahead []reserved
}

// reserved is the number of hits that one boot's last record of a counter reserves ahead.
type reserved struct {
	boot uint64
	hits uint32
}

// journalCounters merges the counters of journals.
type journalCounters struct {
	prefix   string // only keys whose digest begins so
	counters map[journalKey]*journalCounter
}

// parse checks the flags and returns the time of the counts.
func (s *journalCounters) parse(key, at string) (time.Time, error) {
	if len(key) > 32 || strings.Trim(s.prefix, "0123456789abcdef") != "" {
		return time.Time{}, usageError{fmt.Errorf("--key %q: want at most 32 hexadecimal digits, as in the digest of "+
			"keyward explain -o json", key)}
	}
	if at == "" {
		return time.Now(), nil
	}
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return t, usageError{fmt.Errorf("--at %q: want a time such as 2026-11-24T15:00:00Z", at)}
	}
	return t, nil
}

// add merges a record of the journal i.
func (s *journalCounters) add(i *durable.Inspection, c *protocol.CounterRecord, ahead uint32) {
	k := journalKey{i.Label, c.Key}
	if !strings.HasPrefix(k.digest(), s.prefix) {
		return
	}
	m := s.counters[k]
	if m == nil {
		m = &journalCounter{rule: c.Rule}
		s.counters[k] = m
	}
	if !i.Header.Created.Before(m.at) {
		m.rule, m.at = c.Rule, i.Header.Created
	}
	c.Rule.Merge(&m.state, &limit.State{TAT: c.State.TAT, Slots: slices.Clone(c.State.Slots)})
	n := slices.IndexFunc(m.ahead, func(r reserved) bool { return r.boot == i.Boot })
	switch {
	case n >= 0:
		m.ahead[n].hits = ahead
	case ahead > 0:
		m.ahead = append(m.ahead, reserved{i.Boot, ahead})
	}
}

// showReport is the JSON of `keyward journal show`. Fields are only ever added.
type showReport struct {
	At       time.Time     `json:"at"` // of the counts
	Journals int           `json:"journals"`
	Ended    int           `json:"ended"` // counters that do not count any more, which are left out
	Counters []showCounter `json:"counters"`
}

// showCounter is a counter that counts.
type showCounter struct {
	Label     string    `json:"label"` // digest of the cluster's label
	Key       string    `json:"key"`   // digest of the descriptor, the algorithm and the window
	Algorithm string    `json:"algorithm"`
	Window    string    `json:"window"`
	Limit     uint32    `json:"limit"`
	Burst     uint32    `json:"burst,omitempty"` // of buckets
	Count     uint64    `json:"count"`           // hits; of buckets the level
	Ahead     uint64    `json:"ahead"`           // hits that boots which have not stopped in good order had reserved
	Writers   []string  `json:"writers"`         // the members that have charged it, or boot IDs in hexadecimal
	Ends      time.Time `json:"ends"`            // when it stops to count
}

// report returns the counters that count at now. all are the journals that were read.
func (s *journalCounters) report(all []durable.Inspection, now time.Time) *showReport {
	r := &showReport{At: now.UTC(), Journals: len(all), Counters: []showCounter{}}
	clean, writers := map[uint64]bool{}, map[uint64]string{limit.LostStateWriter: "lost state"}
	for n := range all {
		i := &all[n]
		clean[i.Boot], writers[i.Boot] = i.Report.Clean, i.Header.Member
		if i.Ring != nil {
			for _, m := range i.Ring.Members {
				writers[m.Boot] = m.Name
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(s.counters), func(a, b journalKey) int {
		return cmp.Or(strings.Compare(a.label, b.label), slices.Compare(a.key[:], b.key[:]))
	})
	for _, k := range keys {
		m := s.counters[k]
		ends := m.rule.Expires(&m.state)
		if ends <= now.UnixNano() {
			r.Ended++
			continue
		}
		c := showCounter{
			Label: k.label, Key: k.digest(), Algorithm: m.rule.Algorithm.String(), Window: windowText(m.rule.Window),
			Limit: m.rule.Limit, Count: m.rule.Used(&m.state, now.UnixNano()), Ends: time.Unix(0, ends).UTC(),
			Writers: m.writers(writers),
		}
		if m.rule.Algorithm.Bucket() {
			c.Burst = m.rule.Depth()
		}
		for _, a := range m.ahead {
			if !clean[a.boot] {
				c.Ahead += uint64(a.hits)
			}
		}
		r.Counters = append(r.Counters, c)
	}
	return r
}

// writers returns the names of the members that have charged the counter, or of boots without a name.
func (m *journalCounter) writers(names map[uint64]string) []string {
	all := []string{}
	for _, slot := range m.state.Slots {
		// A boot charges hits of a local share as the even number below its ID, which is odd.
		all = append(all, cmp.Or(names[slot.Writer], names[slot.Writer|1], fmt.Sprintf("%016x", slot.Writer)))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// windowText returns a window without units that are 0: "720h".
func windowText(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// write writes the report as a table.
func (r *showReport) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	several := slices.ContainsFunc(r.Counters, func(c showCounter) bool { return c.Label != r.Counters[0].Label })
	label := func(text string) string {
		if !several {
			return ""
		}
		return text + "\t"
	}
	if len(r.Counters) > 0 {
		fmt.Fprintln(w, label("LABEL")+"KEY\tALGORITHM\tWINDOW\tLIMIT\tCOUNT\tAHEAD\tENDS\tWRITERS")
	}
	for _, c := range r.Counters {
		amount := fmt.Sprint(c.Limit)
		if c.Burst > 0 {
			amount += fmt.Sprintf(", burst %d", c.Burst)
		}
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n",
			label(c.Label), c.Key, c.Algorithm, c.Window, amount, c.Count, c.Ahead, c.Ends.Format(time.RFC3339), names(c.Writers))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s in %s; %d others have ended\n",
		count(len(r.Counters), "counter"), count(r.Journals, "journal"), r.Ended)
	return err
}
