package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/ops/doctor"
	"github.com/keyward/keyward/internal/promtext"
)

func newDoctor() *cobra.Command {
	var envoys []string
	var rules string
	var o config.Options
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Find problems of a cluster and of the Envoys in front of it, with advice",
		Long:    helpText("doctor"),
		Example: helpExamples("doctor"),
		Args:    cobra.NoArgs,
	}
	members, output := memberFlag(cmd), outputFlag(cmd)
	strict := cmd.Flags().Bool("strict", false, "exit code 1 also for warnings")
	cmd.Flags().StringSliceVar(&envoys, "envoy", nil, "`host:port` of an Envoy's admin page, or several, separated by commas")
	cmd.Flags().StringVar(&rules, "rules", "", "`directory` or file of the rules that are expected to be in force")
	cmd.Flags().BoolVar(&o.MergeDomains, "merge-domain-configs", false, "with --rules: merge files that define the same domain (MERGE_DOMAIN_CONFIG)")
	cmd.Flags().StringVar(&o.KeyPrefix, "key-prefix", "", "with --rules: the members' CACHE_KEY_PREFIX")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := gather(cmd.Context(), *members, envoys)
		if err != nil {
			return err
		}
		if rules != "" {
			f.Rules = rulesHere(rules, o, f)
		}
		found := doctor.Examine(f)
		err = show(cmd.OutOrStdout(), *output, found, func(out io.Writer) error { return writeFindings(out, found) })
		if worst := doctor.Worst(found); err == nil && (worst == doctor.Fail || *strict && worst == doctor.Warn) {
			err = errFailed
		}
		return err
	}
	return cmd
}

// rulesHere reads the rules that are expected to be in force.
func rulesHere(path string, o config.Options, f *doctor.Snapshot) *doctor.LocalRules {
	h := &doctor.LocalRules{Path: path}
	for i := range f.Members { // the label is a part of the version
		if c := f.Members[i].Cluster.Label; c != "" {
			o.Cluster = c
		}
	}
	rules, err := loadPath(path, o)
	if err != nil {
		h.Err = err
		return h
	}
	h.Hash, h.Domains = source.Hex(rules.Hash()), rules.Domains()
	return h
}

// gather asks all members and Envoys, and probes all ports, in parallel.
func gather(ctx context.Context, members, envoys []string) (*doctor.Snapshot, error) {
	c, err := discover(ctx, members)
	if err != nil {
		return nil, err
	}
	f := &doctor.Snapshot{Now: time.Now()}
	if none, err := config.Load(nil, config.Options{}); err == nil {
		f.NoRules = source.Hex(none.Hash())
	}
	for _, s := range c.silent {
		f.Unreachable = append(f.Unreachable, doctor.UnreachablePage{Page: strings.TrimPrefix(s.Page, "http://"), Name: s.Name, Err: s.Err})
	}
	var asking sync.WaitGroup
	f.Members = make([]doctor.MemberReport, len(c.procs))
	for i, p := range c.procs {
		m := &f.Members[i]
		*m = doctor.MemberReport{Page: p.url, Cluster: p.cluster, Self: p.self, Within: p.took / 2}
		if p.self != nil {
			m.Ahead = time.Unix(0, p.self.Time).Sub(p.asked.Add(p.took / 2))
		}
		asking.Go(func() { m.Metrics = metricsOf(ctx, p.url) })
		asking.Go(func() {
			if h, err := get[api.HotKeys](ctx, p.url+"/v1/hotkeys"); err == nil {
				m.HotKeys = &h
			}
		})
	}
	f.Envoys = make([]doctor.EnvoyPages, len(envoys))
	for i, e := range envoys {
		asking.Go(func() { f.Envoys[i] = askEnvoy(ctx, e) })
	}
	f.Probes = probes(c)
	for i := range f.Probes {
		p := &f.Probes[i]
		asking.Go(func() { p.Err = probe(ctx, p) })
	}
	asking.Wait()
	return f, nil
}

// metricsOf returns the metrics of a member. They are empty if it serves them at another address.
func metricsOf(ctx context.Context, url string) promtext.Page {
	ctx, cancel := context.WithTimeout(ctx, getBound)
	defer cancel()
	text, err := getBytes(ctx, url+"/metrics")
	if err != nil {
		return nil
	}
	page, err := promtext.Parse(text)
	if err != nil {
		return nil
	}
	return page
}

func askEnvoy(ctx context.Context, addr string) doctor.EnvoyPages {
	ctx, cancel := context.WithTimeout(ctx, getBound)
	defer cancel()
	e := doctor.EnvoyPages{Address: addr}
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	into := []*[]byte{&e.ServerInfo, &e.ConfigDump, &e.Clusters, &e.Stats}
	for i, page := range doctor.Pages() {
		body, err := getBytes(ctx, strings.TrimRight(addr, "/")+page)
		if err != nil {
			e.Err = err
			return e
		}
		*into[i] = body
	}
	return e
}

// probes returns the ports of all members that any member lists.
func probes(c *clusterSeen) (all []doctor.Probe) {
	seen := map[string]bool{}
	add := func(member, what, address string) {
		if address != "" && !seen[what+address] {
			seen[what+address] = true
			all = append(all, doctor.Probe{Member: member, What: what, Address: address})
		}
	}
	for _, p := range c.procs {
		if p.cluster.Standalone {
			continue // it has no listener for others
		}
		for _, m := range p.cluster.Members {
			add(m.ID, "gossip/tcp", m.Gossip)
			add(m.ID, "gossip/udp", m.Gossip)
			add(m.ID, "peer/tcp", m.Peer)
		}
	}
	return all
}

// probeBound is the time for a port to answer. An open UDP port does not answer a packet without the gossip key. A
// closed one refuses it.
const (
	probeBound = 2 * time.Second
	udpBound   = 300 * time.Millisecond
)

func probe(ctx context.Context, p *doctor.Probe) error {
	_, network, _ := strings.Cut(p.What, "/")
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, network, p.Address)
	if err != nil {
		return plainly(err)
	}
	defer conn.Close()
	if network == "tcp" {
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(udpBound))
	if _, err := conn.Write(nil); err != nil {
		return plainly(err)
	}
	if _, err := conn.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNREFUSED) {
		return plainly(err)
	}
	return nil
}

// plainly returns the system's error without the address, which the message already contains.
func plainly(err error) error {
	var sys *os.SyscallError
	if errors.As(err, &sys) {
		return sys.Err
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

func writeFindings(out io.Writer, found []doctor.Finding) error {
	counts := map[doctor.Severity]int{}
	var b strings.Builder
	for _, f := range found {
		counts[f.Severity]++
		level := string(f.Severity)
		if f.Severity == doctor.Fail {
			level = "FAIL"
		}
		fmt.Fprintf(&b, "%-4s  %-12s  %s\n", level, f.Check, printable(f.Text))
		if f.Advice != "" && f.Severity != doctor.OK {
			fmt.Fprintf(&b, "%20s  -> %s\n", "", f.Advice)
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %s, %d failed\n", counts[doctor.OK], count(counts[doctor.Warn], "warning"), counts[doctor.Fail])
	_, err := io.WriteString(out, b.String())
	return err
}
