package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/ringcheck"
	"github.com/keyward/keyward/ring"
)

func newRing() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ring",
		Short: "Print the owners of keys, show rings and compare them with Envoy's",
	}
	cmd.AddCommand(newRingOwner(), newRingShow(), newRingPlot(), newRingDiff(), newRingCheck())
	return cmd
}

// keyOwner is a line of `keyward ring owner`.
type keyOwner struct {
	Key       string `json:"key"`
	Position  string `json:"position"`
	Owner     string `json:"owner"`
	Successor string `json:"heir"`
}

func newRingOwner() *cobra.Command {
	var members []string
	var kind string
	cmd := &cobra.Command{
		Use:     "owner --members a,b,c KEY...",
		Short:   "Print KEY<tab>OWNER for each key, or for each line of standard input",
		Example: helpExamples("ring-owner"),
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, keys []string) error {
		r, err := ringOfKind(kind, members)
		if err != nil {
			return err
		}
		out, lines := bufio.NewWriter(cmd.OutOrStdout()), []keyOwner{}
		err = eachKey(cmd.InOrStdin(), keys, func(k string) {
			h := ring.Hash(k)
			line := keyOwner{k, fmt.Sprintf("%016x", h), memberAt(r, r.Owner(h)), memberAt(r, r.Successor(h))}
			if *output == "json" {
				lines = append(lines, line)
				return
			}
			fmt.Fprintf(out, "%s\t%s\n", k, line.Owner)
		})
		if err == nil && *output == "json" {
			err = show(out, *output, lines, nil)
		}
		return errors.Join(err, out.Flush())
	}
	cmd.Flags().StringSliceVar(&members, "members", nil, "names of the members, as `name` or name=weight")
	_ = cmd.MarkFlagRequired("members") // the flag exists
	defineRingKind(cmd, &kind)
	return cmd
}

func defineRingKind(cmd *cobra.Command, kind *string) {
	cmd.Flags().StringVar(kind, "ring", "keyward",
		"`kind` of ring of --members: keyward, or envoy/MIN/MAX/HASH for a RING_HASH cluster of yours, whose hosts --members "+
			"are (envoy alone: Envoy's defaults, envoy/1024/8388608/xx)")
}

// ringOfKind builds the ring of a kind of the members with these names.
func ringOfKind(kind string, names []string) (*ring.Ring, error) {
	p := ring.EnvoyParameters(0, 0, ring.XXHash)
	var err error
	if kind != "envoy" {
		if p, err = ring.ParseParameters(kind); err == nil {
			err = p.Validate()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("--ring: %w", err)
	}
	members, err := membersOf(names)
	if err != nil {
		return nil, err
	}
	for i := range members {
		if p.Envoy {
			members[i].Host = string(members[i].ID)
		}
	}
	return p.New(members), nil
}

// ringOf builds the ring of the members with these names.
func ringOf(names []string) (*ring.Ring, error) {
	members, err := membersOf(names)
	if err != nil {
		return nil, err
	}
	return ring.New(members), nil
}

// membersOf returns the members with these names, or name=weight.
func membersOf(names []string) ([]ring.Member, error) {
	members := make([]ring.Member, len(names))
	for i, n := range names {
		members[i] = ring.Member{ID: ring.ID(n), Weight: 1}
		id, weight, ok := strings.Cut(n, "=")
		if !ok {
			continue
		}
		members[i].ID = ring.ID(id)
		if _, err := fmt.Sscan(weight, &members[i].Weight); err != nil || members[i].Weight == 0 {
			return nil, fmt.Errorf("--members %q: the weight is a whole number of at least 1", n)
		}
	}
	if err := ring.Validate(members, ring.MaxCapacity); err != nil {
		return nil, fmt.Errorf("--members: %w", err)
	}
	return members, nil
}

func eachKey(in io.Reader, keys []string, do func(string)) error {
	for _, k := range keys {
		do(k)
	}
	if len(keys) > 0 {
		return nil
	}
	s := bufio.NewScanner(in)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		do(s.Text())
	}
	return s.Err()
}

// ringChecked is the JSON of `keyward ring check`.
type ringChecked struct {
	Passed int          `json:"passed"`
	Failed int          `json:"failed"`
	Files  []ringVector `json:"files"`
}

// ringVector is one file of recorded decisions.
type ringVector struct {
	File     string   `json:"file"`
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"`
	Failures []string `json:"failures,omitempty"` // the first ones
	Error    string   `json:"error,omitempty"`    // it could not be read
}

func newRingCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Compare the ring with recorded decisions of Envoy",
		Long:  helpText("ring-check"),
		Args:  cobra.MinimumNArgs(1),
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		r := checkVectors(files)
		if err := show(cmd.OutOrStdout(), *output, r, r.write); err != nil {
			return err
		}
		if r.Failed > 0 || slices.ContainsFunc(r.Files, func(v ringVector) bool { return v.Error != "" }) {
			return errFailed
		}
		return nil
	}
	return cmd
}

func checkVectors(files []string) *ringChecked {
	all := &ringChecked{Files: []ringVector{}}
	for _, f := range files {
		line := ringVector{File: f}
		b, err := os.ReadFile(f)
		var v *ringcheck.Vectors
		if err == nil {
			v, err = ringcheck.ParseVectors(b)
		}
		if err != nil {
			line.Error = err.Error()
		} else {
			r := v.Check()
			line.Passed, line.Failed, line.Failures = r.Passed, r.Failed, r.Failures
		}
		all.Passed, all.Failed, all.Files = all.Passed+line.Passed, all.Failed+line.Failed, append(all.Files, line)
	}
	return all
}

func (r *ringChecked) write(out io.Writer) error {
	for _, f := range r.Files {
		if f.Error != "" {
			fmt.Fprintf(out, "%s: %s\n", f.File, f.Error)
			continue
		}
		fmt.Fprintf(out, "%-50s %6d passed %6d failed\n", f.File, f.Passed, f.Failed)
		for _, why := range f.Failures {
			fmt.Fprintf(out, "    %s\n", why)
		}
	}
	_, err := fmt.Fprintf(out, "%d passed, %d failed\n", r.Passed, r.Failed)
	return err
}
