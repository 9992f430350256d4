package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/ring"
)

func newRing() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ring",
		Short: "Ask the hash ring: who owns a key, and is it still Envoy's?",
	}
	cmd.AddCommand(newRingOwner(), newRingCheck())
	return cmd
}

func newRingOwner() *cobra.Command {
	var members []string
	cmd := &cobra.Command{
		Use:   "owner --members a,b,c KEY...",
		Short: "Print KEY<tab>OWNER for every key; without keys, for every line of the input",
		Example: `  keyward ring owner --members pod-0,pod-1,pod-2 alice bob
  cut -f1 keys.tsv | keyward ring owner --members pod-0,pod-1,pod-2`,
		RunE: func(cmd *cobra.Command, keys []string) error {
			r, err := ringOf(members)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			err = eachKey(cmd.InOrStdin(), keys, func(k string) {
				fmt.Fprintf(out, "%s\t%s\n", k, r.At(r.Owner(ring.Hash(k))).ID)
			})
			return errors.Join(err, out.Flush())
		},
	}
	cmd.Flags().StringSliceVar(&members, "members", nil, "names of the members, as `name` or name=weight")
	_ = cmd.MarkFlagRequired("members") // the flag exists
	return cmd
}

// ringOf builds the ring that the members of these names serve.
func ringOf(names []string) (*ring.Ring, error) {
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
	return ring.New(members), nil
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

func newRingCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE...",
		Short: "Compare the ring with answers recorded from a real Envoy",
		Long: `Builds the ring of every file's hosts and compares each recorded request's host with the one computed here. The last
line counts requests: "N passed, N failed". The exit code is 1 if anything failed or could not be read.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error { return checkVectors(cmd.OutOrStdout(), files) },
	}
}

func checkVectors(out io.Writer, files []string) error {
	passed, failed, broken := 0, 0, false
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			fmt.Fprintln(out, err)
			broken = true
			continue
		}
		v, err := ring.ParseVectors(b)
		if err != nil {
			fmt.Fprintf(out, "%s: %v\n", f, err)
			broken = true
			continue
		}
		r := v.Check()
		passed, failed = passed+r.Passed, failed+r.Failed
		fmt.Fprintf(out, "%-50s %6d passed %6d failed\n", f, r.Passed, r.Failed)
		for _, why := range r.Failures {
			fmt.Fprintf(out, "    %s\n", why)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, failed)
	if broken || failed > 0 {
		return errFailed
	}
	return nil
}
