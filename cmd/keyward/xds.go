package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/internal/api"
)

// xdsServed is the status of one xDS server.
type xdsServed struct {
	Server string `json:"server"`
	xds.ServerStatus
}

func newXDS() *cobra.Command {
	cmd := &cobra.Command{Use: "xds", Short: "Show the state of xDS servers"}
	cmd.AddCommand(newXDSStatus())
	return cmd
}

func newXDSStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "List the clients of the xDS servers, with what each has accepted or rejected",
		Long:    helpText("xds-status"),
		Example: helpExamples("xds-status"),
		Args:    cobra.NoArgs,
	}
	members, output := memberFlag(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := discover(cmd.Context(), *members)
		if err != nil {
			return err
		}
		served := c.xds()
		if len(served) == 0 {
			return errors.New("none of the processes that answer serves xDS: set --xds of a sidecar, or run cmd/xds")
		}
		err = show(cmd.OutOrStdout(), *output, served, func(out io.Writer) error { return writeXDS(out, served, time.Now()) })
		if err == nil && refused(served) > 0 {
			err = errFailed
		}
		return err
	}
	return cmd
}

// refused returns the number of rejected versions.
func refused(served []xdsServed) (n int) {
	for _, s := range served {
		for _, c := range s.Clients {
			for name := range c.Types {
				if s.stateOf(&c, name) == stateRefused {
					n++
				}
			}
		}
	}
	return n
}

// The states of a client by one type of resource.
const (
	stateInStep  = "in step"
	stateBehind  = "behind"
	stateRefused = "REFUSED"
)

func (s *xdsServed) stateOf(c *xds.Client, name string) string {
	t, served := c.Types[name], s.Versions[name]
	if name == xds.ExtensionConfigs { // Envoy gets a version only if it changes a filter that Envoy has
		served = t.Sent
	}
	switch {
	case t.Refused != "" && t.Refused == t.Sent:
		return stateRefused
	case t.Accepted != "" && t.Accepted == cmp.Or(served, t.Accepted):
		return stateInStep
	default:
		return stateBehind
	}
}

func writeXDS(out io.Writer, served []xdsServed, now time.Time) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range served {
		fmt.Fprintf(t, "%s\t%s\n", printable(s.Server), count(len(s.Clients), "client"))
		for _, c := range s.Clients {
			kind := "sotw"
			if c.Delta {
				kind = "delta"
			}
			fmt.Fprintf(t, "  %s\t%s, for %v\n", printable(cmp.Or(c.Node, "(no name)")), kind, now.Sub(c.Since).Round(time.Second))
			for _, name := range slices.Sorted(maps.Keys(c.Types)) {
				state := s.stateOf(&c, name)
				fmt.Fprintf(t, "    %s\t%s\taccepted %s\n", name, state, cmp.Or(c.Types[name].Accepted, "nothing"))
				if state == stateRefused {
					fmt.Fprintf(t, "    \t%s: %s\n", c.Types[name].RefusedAt.Format(time.DateTime), printable(c.Types[name].Why))
				}
			}
		}
	}
	versions := "all servers serve the same versions"
	if differ(served) {
		versions = "the servers' versions differ"
	}
	fmt.Fprintln(t, versions)
	return t.Flush()
}

// differ reports whether two servers serve different versions of a type. Some have no rules to serve, and then no
// filters for the domains of the rules.
func differ(served []xdsServed) bool {
	versions := map[string]string{}
	for _, s := range served {
		for name, v := range s.Versions {
			if v != "" && name != xds.ExtensionConfigs && cmp.Or(versions[name], v) != v {
				return true
			}
			versions[name] = v
		}
	}
	return false
}

// xds returns the status of the xDS servers of c.
func (c *clusterSeen) xds() (served []xdsServed) {
	for _, p := range c.procs {
		if s, ok := xdsOf(&p.cluster); ok {
			served = append(served, xdsServed{p.cluster.Self, s})
		}
	}
	return served
}

// xdsOf returns the xDS status in a /cluster document.
func xdsOf(c *api.ClusterStatus) (s xds.ServerStatus, ok bool) {
	if c.XDS == nil {
		return s, false
	}
	text, err := json.Marshal(c.XDS)
	return s, err == nil && json.Unmarshal(text, &s) == nil
}

// clusterSeen holds the answers of the processes of a cluster.
type clusterSeen struct {
	procs  []*process // those that answered, by name
	silent []silence
}

// process is a member or observer that answered.
type process struct {
	url     string
	cluster api.ClusterStatus
	self    *api.Self // nil if its version does not serve it
	selfErr error
	asked   time.Time // when self was requested, by the local clock
	took    time.Duration
}

// silence is a page that did not answer.
type silence struct {
	Page string
	Name string // as other members list it; empty for a given address
	Err  error
}

// discover asks the given members, and all that they list, each once. It returns an error if none answers.
func discover(ctx context.Context, members []string) (*clusterSeen, error) {
	urls, err := memberURLs(members)
	if err != nil {
		return nil, err
	}
	c := &clusterSeen{}
	asked, names := map[string]bool{}, map[string]string{}
	for len(urls) > 0 {
		var next []string
		for _, u := range urls {
			if asked[u] {
				continue
			}
			asked[u] = true
			p, err := askProcess(ctx, u)
			if err != nil {
				c.silent = append(c.silent, silence{u, names[u], err})
				continue
			}
			if c.has(p) {
				continue // the same process at another address
			}
			c.procs = append(c.procs, p)
			for _, m := range p.cluster.Members {
				if m.Page != "" && !c.knows(m.ID) {
					next = append(next, "http://"+m.Page)
					names["http://"+m.Page] = m.ID
				}
			}
		}
		urls = next
	}
	if len(c.procs) == 0 {
		return nil, c.errors()
	}
	slices.SortFunc(c.procs, func(a, b *process) int { return cmp.Compare(a.cluster.Self, b.cluster.Self) })
	return c, nil
}

// has reports whether p has answered at another address.
func (c *clusterSeen) has(p *process) bool {
	return slices.ContainsFunc(c.procs, func(o *process) bool { return o.cluster.Self == p.cluster.Self && o.cluster.Inst == p.cluster.Inst })
}

// errors returns why the pages did not answer.
func (c *clusterSeen) errors() error {
	var all []error
	for _, s := range c.silent {
		all = append(all, s.Err)
	}
	return errors.Join(all...)
}

// knows reports whether the member with this name has answered.
func (c *clusterSeen) knows(id string) bool {
	return slices.ContainsFunc(c.procs, func(p *process) bool { return p.cluster.Self == id })
}

func askProcess(ctx context.Context, page string) (*process, error) {
	p := &process{url: page}
	var err error
	if p.cluster, err = get[api.ClusterStatus](ctx, page+"/cluster"); err != nil {
		return nil, err
	}
	p.asked = time.Now()
	self, err := get[api.Self](ctx, page+"/v1/self")
	p.took = time.Since(p.asked)
	if err != nil {
		p.selfErr = err
	} else {
		p.self = &self
	}
	return p, nil
}
