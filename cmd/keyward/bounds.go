package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/ops/rulecheck"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

func newBounds() *cobra.Command {
	var o config.Options
	c := rulecheck.Conditions{}
	var partition string
	var data bool
	var dataWindow time.Duration
	var regions regionFlags
	cmd := &cobra.Command{
		Use:     "bounds RULES --members N",
		Short:   "Print by how many hits a fault can exceed each limit",
		Long:    helpText("bounds"),
		Example: helpExamples("bounds"),
		Args:    cobra.ExactArgs(1),
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var known bool
		var fault error
		if c.Partition, known = policy.ParsePartition(partition); !known {
			fault = fmt.Errorf("--policy %s: want share, available or quorum", partition)
		}
		if data {
			c.DataWindow = dataWindow
		}
		if dataWindow < minDataWindow {
			fault = errors.Join(fault, fmt.Errorf("--data-window %v: want at least %v", dataWindow, minDataWindow))
		}
		var err error
		if c.Regions, err = regions.conditions(); err != nil {
			fault = errors.Join(fault, err)
		}
		fault = errors.Join(fault, quotaFaults(c.Quota))
		o.Members = c.Members
		rules, err := boundsOf(args[0], o, c)
		if err = errors.Join(fault, err); err != nil {
			return err
		}
		report := boundsReport{Conditions: c, Detection: rulecheck.DetectionCostOf(c.Detection, c.Members), Rules: rules}
		if data {
			report.DataWindow = dataWindow.String()
		}
		return show(cmd.OutOrStdout(), *output, report, func(out io.Writer) error { return writeBounds(out, c, rules) })
	}
	cmd.Flags().IntVar(&c.Members, "members", 0, "`number` of members of the cluster")
	cmd.Flags().StringVar(&partition, "policy", policy.PartShare.String(), "the members' `policy` (--partition): share, available or quorum")
	cmd.Flags().Float64Var(&c.Rate, "rate", 0, "largest number of `hits` per second for one key (default: unknown)")
	cmd.Flags().BoolVar(&o.MergeDomains, "merge-domain-configs", false, "merge files that define the same domain (MERGE_DOMAIN_CONFIG)")
	cmd.Flags().DurationVar((*time.Duration)(&c.Detection), "detection", time.Duration(membership.DefaultDetection),
		"the members' detection `time` (--detection)")
	cmd.Flags().DurationVar(&c.Outage, "outage", 0, "also print the cost of an outage of this `duration`, in which no member reaches the owner")
	cmd.Flags().BoolVar(&data, "data", false, "the members have a journal (--data): print what the loss of all members costs then")
	cmd.Flags().DurationVar(&dataWindow, "data-window", time.Hour, "with --data: the members' `duration` of the shortest window in the journal (--data-window)")
	cmd.Flags().Uint64Var(&c.Quota.Envoys, "envoys", 0, "for rules with mechanism: quota: `number` of Envoys that share a limit (default: the rule's envoys)")
	cmd.Flags().Uint64Var(&c.Quota.Connections, "connections", 100, "for rules with mechanism: quota: `number` of callers' connections to one Envoy")
	regions.define(cmd.Flags())
	_ = cmd.MarkFlagRequired("members") // the flag exists
	return cmd
}

// minDataWindow is the smallest --data-window of a member.
const minDataWindow = time.Second

const (
	maxEnvoys      = 10_000
	maxConnections = 1_000_000
)

// quotaFaults checks the flags for rules with mechanism: quota.
func quotaFaults(q rulecheck.QuotaConditions) (err error) {
	if q.Envoys > maxEnvoys {
		err = fmt.Errorf("--envoys %d: want 1 to %d", q.Envoys, maxEnvoys)
	}
	if q.Connections < 1 || q.Connections > maxConnections {
		err = errors.Join(err, fmt.Errorf("--connections %d: want 1 to %d", q.Connections, maxConnections))
	}
	return err
}

// maxOutage is the longest outage: a year.
const maxOutage = 365 * 24 * time.Hour

// boundsOf checks the flags and computes the bounds of all rules.
func boundsOf(path string, o config.Options, c rulecheck.Conditions) ([]rulecheck.RuleBounds, error) {
	var faults []error
	if c.Members < 1 || c.Members > ring.MaxCapacity {
		faults = append(faults, fmt.Errorf("--members %d: want 1 to %d", c.Members, ring.MaxCapacity))
	}
	if !(c.Rate >= 0) {
		faults = append(faults, fmt.Errorf("--rate %v: want hits a second", c.Rate))
	}
	if err := c.Detection.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("--detection: %w", err))
	}
	if c.Outage < 0 || c.Outage > maxOutage {
		faults = append(faults, fmt.Errorf("--outage %v: want 0s to %v", c.Outage, maxOutage))
	}
	rules, err := loadPath(path, o)
	if err = errors.Join(append(faults, err)...); err != nil {
		return nil, err
	}
	bounds := make([]rulecheck.RuleBounds, len(rules.Rules()))
	for i, r := range rules.Rules() {
		if r.Extension.Federation != nil && c.Regions == nil {
			faults = append(faults, fmt.Errorf("%s:%d: several regions share the limit of %s: give --federation FILE", r.File, r.Line, r.FullKey))
		}
		if r.Extension.Quota != nil && c.Quota.EnvoysOf(r) == 0 && !r.Unlimited {
			faults = append(faults, fmt.Errorf("%s:%d: Envoys spend the limit of %s: give --envoys M", r.File, r.Line, r.FullKey))
		}
		bounds[i] = rulecheck.BoundsOf(r, c)
	}
	return bounds, errors.Join(faults...)
}

func writeBounds(out io.Writer, c rulecheck.Conditions, rules []rulecheck.RuleBounds) error {
	fmt.Fprintf(out, "Members: %d. Partition policy: %s. Hits of one key in one window, at most.\n", c.Members, c.Partition)
	if d := c.Detection; c.Members > 1 {
		fmt.Fprintf(out, "Detection time: %v. A crashed owner is replaced after about %v; one that no member confirms decides for %v.\n",
			d, d.Failover(c.Members).Round(100*time.Millisecond), d.OwnershipTTL())
		fmt.Fprintf(out, "Each member sends %.1f heartbeats per second.\n", rulecheck.DetectionCostOf(d, c.Members).Heartbeats)
	}
	if c.DataWindow > 0 {
		fmt.Fprintf(out, "Members have journals of the rules with windows of at least %s.\n", windowText(c.DataWindow))
	}
	for i := range rules {
		b := &rules[i]
		fmt.Fprintf(out, "\n%s (%s:%d)\n", b.Rule, b.File, b.Line)
		if b.Unlimited {
			fmt.Fprintln(out, "unlimited: nothing to exceed")
			continue
		}
		fmt.Fprintln(out, wayOf(b))
		fmt.Fprintln(out, symbols(b))
		var table strings.Builder
		w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "  event\tover\t\tunder\t\t")
		for _, x := range b.Bounds {
			fmt.Fprintf(w, "  %s\t%s\t%s\t%d\t%s\t%s\n", x.Event, overText(x), known(x.OverFormula), x.Under, known(x.UnderFormula), x.UnderTime)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if err := writeOutage(&table, c, b.Outage, b.Federation != nil); err != nil {
			return err
		}
		for line := range strings.Lines(table.String()) {
			fmt.Fprintln(out, strings.TrimRight(line, " \n"))
		}
	}
	return nil
}

// writeOutage writes what an outage costs with each policy: of the coordinator of a rule with federation, otherwise of
// the owner. o may be nil.
func writeOutage(out io.Writer, c rulecheck.Conditions, o *rulecheck.OutageCost, federated bool) error {
	if o == nil {
		return nil
	}
	of, policies := "", "degraded"
	if federated {
		of, policies = " of the coordinator", "outage"
	}
	fmt.Fprintf(out, "  an outage%s of %v (windows: %d)\n", of, c.Outage, o.Windows)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "    "+policies+"\tover, in all\t\tunder, in each window\t\t")
	for _, p := range o.Policies {
		name, over := p.Policy, fmt.Sprint(p.Over)
		if p.Current {
			name += " (this rule)"
		}
		if p.Partial > 0 {
			over += fmt.Sprintf(", and %d if it begins within a window", p.Partial)
		}
		fmt.Fprintf(w, "    %s\t%s\t%s\t%d\t%s\t%s\n", name, over, known(p.OverFormula), p.Under, known(p.UnderFormula), p.UnderAfter)
	}
	return w.Flush()
}

// known returns the formula of a bound, or "" if it is simply 0.
func known(formula string) string {
	if formula == "0" {
		return ""
	}
	return "= " + formula
}

func overText(b rulecheck.Bound) string {
	if b.Traffic == nil {
		return fmt.Sprint(b.Over)
	}
	return fmt.Sprintf("%d + rate x %v", b.Over, b.Traffic.Duration())
}

// wayOf describes how the rule counts.
func wayOf(b *rulecheck.RuleBounds) string {
	r, x := b.Spec, &b.Spec.Extension
	window := r.Unit.String()
	if x.Window > 0 {
		window = x.Window.String()
	}
	parts := []string{fmt.Sprintf("%d hits a %s", b.Limit, window), r.Limit.Algorithm.String()}
	if b.Depth > 0 {
		parts = append(parts, fmt.Sprintf("burst %d", b.Depth))
	}
	if x.Strict {
		parts = append(parts, "durability strict")
	}
	if x.Volatile {
		parts = append(parts, "durability memory")
	}
	if x.MechanismName() != policy.ByOwner.String() {
		parts = append(parts, "mechanism "+x.MechanismName())
	}
	if x.Quota != nil && x.Quota.OnlyHot {
		parts = append(parts, "hot_step quota")
	}
	if x.Quota != nil {
		parts = append(parts, "first "+x.Quota.First.String())
	}
	if x.Fair != nil {
		parts = append(parts, "fair by "+x.Fair.Entry)
	}
	if holds := x.HoldSettings(); holds != "" {
		parts = append(parts, holds)
	}
	if x.Lease != nil && x.Lease.Reclaim {
		parts = append(parts, "reclaim ttl")
	}
	if x.Lease != nil && x.Lease.ReclaimCrash {
		parts = append(parts, "reclaim crash")
	}
	if x.Partition != 0 {
		parts = append(parts, "partition "+x.Partition.String())
	}
	if x.Federation != nil {
		return strings.Join(append(parts, "federation "+x.Federation.String()), ", ")
	}
	if x.Mechanism == policy.Static {
		return strings.Join(parts, ", ")
	}
	parts = append(parts, "degraded "+x.Degraded.String())
	if x.Degraded == policy.FailOpen && x.LocalCap > 0 {
		parts = append(parts, fmt.Sprintf("local_cap %d", x.LocalCap))
	}
	return strings.Join(parts, ", ")
}

func symbols(b *rulecheck.RuleBounds) string {
	text := fmt.Sprintf("L = %d", b.Limit)
	if b.Depth > 0 {
		text += fmt.Sprintf(", b = %d", b.Depth)
	}
	text += fmt.Sprintf(", U = %d", b.Unacked)
	if b.Unwritten > b.Unacked {
		text += fmt.Sprintf(" (%d in the journal)", b.Unwritten)
	}
	if f := b.Federation; f != nil {
		text += fmt.Sprintf(", K = %d, pool = %d, slice = %d, floor = %d, lot = %d", f.Regions, f.Pool, f.Slice, f.Floor, f.Lot)
		if b.Open > 0 {
			text += fmt.Sprintf(", open = %d", b.Open)
		}
		return text
	}
	text += fmt.Sprintf(", f = %d, share = %d, Phi = %d", b.Tolerated, b.Share, b.Phi)
	if b.Open > 0 {
		text += fmt.Sprintf(", open = %d", b.Open)
	}
	if b.Skew > 0 {
		text += fmt.Sprintf(", S = %d", b.Skew)
	}
	if b.Lent > 0 {
		text += fmt.Sprintf(", lent = %d", b.Lent)
	}
	if b.Drift > 0 {
		text += fmt.Sprintf(", E = %d", b.Drift)
	}
	if b.Envoys > 0 {
		text += fmt.Sprintf(", M = %d, connections = %d", b.Envoys, b.Connections)
	}
	if b.Spec.Extension.Identity != nil && b.Drift > 0 {
		text += fmt.Sprintf(" (%d for a key of an unknown caller)", b.Unknown)
	}
	return text
}

// boundsReport is the JSON of the command. Fields are only ever added.
type boundsReport struct {
	rulecheck.Conditions
	Detection  rulecheck.DetectionCost `json:"detection"`
	DataWindow string                  `json:"data_window,omitempty"` // the members' --data-window; empty: they have no --data

	Rules []rulecheck.RuleBounds `json:"rules"`
}
