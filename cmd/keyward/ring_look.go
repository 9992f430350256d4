package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/ring"
)

// ringFlags select a ring: that of given members, or the one that running members use.
type ringFlags struct {
	names   []string
	kind    string
	members *[]string
}

func (f *ringFlags) define(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.names, "members", nil, "members, as `name` or name=weight, instead of running ones")
	defineRingKind(cmd, &f.kind)
	f.members = memberFlag(cmd)
}

// ring returns the selected ring.
func (f *ringFlags) ring(ctx context.Context) (*ring.Ring, error) {
	if len(f.names) > 0 {
		return ringOfKind(f.kind, f.names)
	}
	c, err := askFirst[api.ClusterStatus](ctx, *f.members, "/cluster")
	if err != nil {
		return nil, err
	}
	return ringIn(&c)
}

// ringIn returns the ring that a member uses.
func ringIn(c *api.ClusterStatus) (*ring.Ring, error) {
	var members []ring.Member
	for _, m := range c.Members {
		if slices.Contains(c.Ring.Members, m.ID) {
			members = append(members, ring.Member{ID: ring.ID(m.ID), Weight: max(1, m.Weight), Host: m.RingHost})
		}
	}
	if len(members) == 0 || len(members) != len(c.Ring.Members) {
		return nil, fmt.Errorf("%s has no ring yet, or its ring has members that are not live: %s", c.Self, strings.Join(c.Ring.Members, ", "))
	}
	if c.Ring.Parameters == "" {
		return ring.New(members), nil
	}
	p, err := ring.ParseParameters(c.Ring.Parameters)
	if err == nil {
		err = p.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("%s has a ring of another version: %w", c.Self, err)
	}
	return p.New(members), nil
}

// ringMember is one member's share of a ring.
type ringMember struct {
	ID     string  `json:"id"`
	Weight uint32  `json:"weight"`
	Share  float64 `json:"share"` // of the hash space, 0 to 1
	Ideal  float64 `json:"ideal"` // by weight alone
}

// sharesOf returns the members' shares of r, by name.
func sharesOf(r *ring.Ring) []ringMember {
	all := make([]ringMember, r.Len())
	at := map[ring.ID]int{}
	for i := range all {
		m := r.At(i)
		at[m.ID] = i
		all[i] = ringMember{ID: string(m.ID), Weight: m.Weight, Ideal: float64(m.Weight) / float64(r.Weight())}
	}
	for _, m := range ring.Diff(new(ring.Ring), r) {
		all[at[m.To]].Share += m.Share()
	}
	return all
}

func newRingShow() *cobra.Command {
	var f ringFlags
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Print each member's share of the ring",
		Long:    helpText("ring-show"),
		Example: helpExamples("ring-show"),
		Args:    cobra.NoArgs,
	}
	f.define(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := f.ring(cmd.Context())
		if err != nil {
			return err
		}
		shares := sharesOf(r)
		return show(cmd.OutOrStdout(), *output, shares, func(out io.Writer) error {
			t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "MEMBER\tWEIGHT\tOWNS\tIDEAL")
			for _, m := range shares {
				fmt.Fprintf(t, "%s\t%d\t%.2f %%\t%.2f %%\n", printable(m.ID), m.Weight, 100*m.Share, 100*m.Ideal)
			}
			return t.Flush()
		})
	}
	return cmd
}

// ringChange describes what moves between two rings.
type ringChange struct {
	Moved   float64      `json:"moved"` // fraction of the keys that have a new owner
	Ideal   float64      `json:"ideal"` // the smallest possible fraction, by weights
	Arcs    int          `json:"arcs"`
	Members []ringGained `json:"members"`
}

// ringGained describes what one member gains and loses.
type ringGained struct {
	ID     string  `json:"id"`
	Before float64 `json:"before"`
	After  float64 `json:"after"`
	Gets   float64 `json:"gets"`
	Gives  float64 `json:"gives"`
}

// changeOf compares two rings.
func changeOf(a, b *ring.Ring) ringChange {
	moves := ring.Diff(a, b)
	c := ringChange{Moved: ring.MovedShare(moves), Arcs: len(moves)}
	at := map[string]*ringGained{}
	member := func(id string) *ringGained {
		if at[id] == nil {
			at[id] = &ringGained{ID: id}
		}
		return at[id]
	}
	least := map[string]float64{}
	for _, m := range sharesOf(a) {
		member(m.ID).Before = m.Share
		least[m.ID] -= m.Ideal
	}
	for _, m := range sharesOf(b) {
		member(m.ID).After = m.Share
		least[m.ID] += m.Ideal
	}
	for _, m := range moves {
		member(string(m.From)).Gives += m.Share()
		member(string(m.To)).Gets += m.Share()
	}
	for id, more := range least {
		c.Ideal += math.Max(0, more)
		c.Members = append(c.Members, *at[id])
	}
	slices.SortFunc(c.Members, func(a, b ringGained) int { return strings.Compare(a.ID, b.ID) })
	return c
}

func newRingDiff() *cobra.Command {
	var f ringFlags
	var to []string
	cmd := &cobra.Command{
		Use:     "diff --to a,b,c,d",
		Short:   "Print which part of the keys moves when members join or leave",
		Long:    helpText("ring-diff"),
		Example: helpExamples("ring-diff"),
		Args:    cobra.NoArgs,
	}
	f.define(cmd)
	output := outputFlag(cmd)
	cmd.Flags().StringSliceVar(&to, "to", nil, "members of the new ring, as `name` or name=weight")
	_ = cmd.MarkFlagRequired("to") // the flag exists
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		before, err := f.ring(cmd.Context())
		if err != nil {
			return err
		}
		if len(f.names) == 0 && before.Parameters().Envoy {
			return fmt.Errorf("the members have adopted the ring %s: give its hosts with --members and --to, and --ring %[1]s", before.Parameters())
		}
		after, err := ringOfKind(f.kind, to)
		if err != nil {
			return err
		}
		c := changeOf(before, after)
		return show(cmd.OutOrStdout(), *output, c, c.write)
	}
	return cmd
}

func (c *ringChange) write(out io.Writer) error {
	fmt.Fprintf(out, "moved %.2f %% of all keys, ideal %.2f %%\n", 100*c.Moved, 100*c.Ideal)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MEMBER\tOWNS\tWILL OWN\tGETS\tGIVES")
	for _, m := range c.Members {
		fmt.Fprintf(t, "%s\t%.2f %%\t%.2f %%\t%.2f %%\t%.2f %%\n", printable(m.ID), 100*m.Before, 100*m.After, 100*m.Gets, 100*m.Gives)
	}
	return t.Flush()
}
