package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

func newExplain() *cobra.Command {
	var offline offlineRules
	cmd := &cobra.Command{
		Use:     "explain DOMAIN KEY=VALUE... [+ KEY=VALUE...]",
		Short:   "Show which rule limits a descriptor and why, its owner, its count and the next decision",
		Long:    helpText("explain"),
		Example: helpExamples("explain"),
		Args:    cobra.MinimumNArgs(2),
	}
	members, output := memberFlag(cmd), outputFlag(cmd)
	cmd.Flags().StringVar(&offline.path, "rules", "", "`directory` or file of rules, instead of a running member")
	cmd.Flags().StringSliceVar(&offline.members, "members", nil, "with --rules: names of the members, as `name` or name=weight")
	cmd.Flags().BoolVar(&offline.options.MergeDomains, "merge-domain-configs", false, "with --rules: merge files that define the same domain (MERGE_DOMAIN_CONFIG)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		descriptors, err := parseDescriptors(args[1:])
		if err != nil {
			return err
		}
		all := make([]api.Explanation, len(descriptors))
		for i, entries := range descriptors {
			if offline.path != "" {
				all[i], err = offline.explain(args[0], entries)
			} else {
				all[i], err = askFirst[api.Explanation](cmd.Context(), *members, "/v1/explain?"+descriptorQuery(args[0], entries))
			}
			if err != nil {
				return err
			}
		}
		return showExplained(cmd.OutOrStdout(), *output, args[0], all)
	}
	return cmd
}

// showExplained prints the explanation of one descriptor, or of a call with several.
func showExplained(out io.Writer, format, domain string, all []api.Explanation) error {
	if len(all) == 1 {
		return show(out, format, all[0], func(out io.Writer) error { return writeExplain(out, &all[0]) })
	}
	r := explainRequest(domain, all)
	return show(out, format, r, r.write)
}

// parseEntries parses KEY=VALUE arguments.
func parseEntries(args []string) (entries []config.Entry, err error) {
	for _, pair := range args {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("%q: want KEY=VALUE", pair)
		}
		entries = append(entries, config.Entry{Key: k, Value: v})
	}
	return entries, nil
}

// descriptorQuery returns the query of /v1/counters and /v1/explain for a descriptor.
func descriptorQuery(domain string, entries []config.Entry) string {
	q := url.Values{"domain": {domain}}
	for _, e := range entries {
		q.Add("key", e.Key+"="+e.Value)
	}
	return q.Encode()
}

// askFirst returns the document of the first member that answers.
func askFirst[T any](ctx context.Context, members []string, path string) (v T, err error) {
	urls, err := memberURLs(members)
	if err != nil {
		return v, err
	}
	var faults []error
	for _, u := range urls {
		if v, err = get[T](ctx, u+path); err == nil {
			return v, nil
		}
		faults = append(faults, err)
	}
	return v, errors.Join(faults...)
}

// offlineRules are rules and members that are not running.
type offlineRules struct {
	path    string // of the rules
	options config.Options
	members []string // as NAME or NAME=WEIGHT; none: owners are unknown
}

// explain explains a descriptor by the rules and the ring of the members.
func (o *offlineRules) explain(domain string, entries []config.Entry) (api.Explanation, error) {
	rules, err := loadPath(o.path, o.options)
	if err != nil {
		return api.Explanation{}, err
	}
	e, found := admin.NewExplanation(rules, domain, entries)
	if len(o.members) == 0 || found.Kind != config.Limited || found.Extension().Mechanism == policy.Static {
		return e, nil
	}
	r, err := ringOf(o.members)
	if err != nil {
		return e, err
	}
	e.Owner, e.Successor = memberAt(r, r.Owner(found.Owner)), memberAt(r, r.Successor(found.Owner))
	return e, nil
}

func memberAt(r *ring.Ring, i int) string {
	if i < 0 {
		return ""
	}
	return string(r.At(i).ID)
}

func writeExplain(out io.Writer, e *api.Explanation) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	for _, s := range e.Steps {
		writeStep(row, &s)
	}
	if r := e.Rule; r != nil {
		text := ruleText(r)
		row("rule", "%s (%s:%d): %s", printable(strings.Join(r.Path, " > ")), r.File, r.Line, text)
	}
	if e.Matched && !e.Rule.Unlimited {
		row("owner", "%s", ownerText(e))
	}
	if c := e.Counter; c != nil {
		row("count", "%d of %d, %d left, resets in %.0f s%s", c.Count, c.Limit, c.Remaining, c.Reset, lentText(c))
		for _, t := range c.Tenants {
			row("tenant", "%s: weight %d, %d admitted of %d, %d more now", printable(t.Tenant), t.Weight, t.Used, t.Asked, t.Remaining)
		}
	}
	row("verdict", "%s", e.Verdict)
	row("why", "%s", printable(e.Why))
	for _, h := range slices.Sorted(maps.Keys(e.Headers)) {
		row("header", "%s: %s", h, e.Headers[h])
	}
	return t.Flush()
}

func writeStep(row func(name, format string, args ...any), s *api.ExplainStep) {
	name := printable(s.Entry.Key + "=" + s.Entry.Value)
	if s.Taken == nil {
		row(name, "no descriptor matches: the search ends here")
	} else {
		row(name, "matches %s (%s:%d): %s", s.Taken.Descriptor, s.Taken.File, s.Taken.Line, s.Taken.Why)
	}
	for _, p := range s.Passed {
		row("", "not %s (%s:%d): %s", p.Descriptor, p.File, p.Line, p.Why)
	}
	if s.More > 0 {
		row("", "nor %s with other keys or values", count(s.More, "descriptor"))
	}
}

func ruleText(r *api.ExplainRule) string {
	if r.Unlimited {
		return "unlimited"
	}
	parts := []string{fmt.Sprintf("%d in %s", r.Limit, r.Window), r.Algorithm}
	if r.Burst > 0 {
		parts = append(parts, fmt.Sprintf("burst %d", r.Burst))
	}
	if r.Mechanism != "owner" {
		parts = append(parts, "mechanism "+r.Mechanism)
	}
	parts = append(parts, "degraded "+r.Degraded)
	if r.Partition != "" {
		parts = append(parts, "partition "+r.Partition)
	}
	if r.Fair != "" {
		parts = append(parts, "fair by "+r.Fair)
	}
	if r.Holds != "" {
		parts = append(parts, r.Holds)
	}
	if r.Shadow {
		parts = append(parts, "shadow_mode")
	}
	if r.Quota {
		parts = append(parts, "quota_mode")
	}
	return strings.Join(parts, ", ")
}

func ownerText(e *api.Explanation) string {
	text := "unknown: set --members"
	if e.Rule != nil && e.Rule.Mechanism == policy.Static.String() {
		text = "none: each member counts for itself"
	}
	if e.Owner != "" {
		text = printable(e.Owner)
	}
	if e.Successor != "" && e.Successor != e.Owner {
		text += ", its successor is " + printable(e.Successor)
	}
	return fmt.Sprintf("%s (owner string %s, position %s)", text, printable(e.OwnerString), e.Position)
}

func lentText(c *api.CounterStatus) string {
	text := ""
	if c.Lent != nil && *c.Lent > 0 {
		text = fmt.Sprintf("; %d of them are lent to other members", *c.Lent)
	}
	if h := c.Holds; h != nil && h.Open > 0 {
		text += fmt.Sprintf("; %d held by %s", h.Held, count(int(h.Open), "open hold"))
	}
	return text
}
