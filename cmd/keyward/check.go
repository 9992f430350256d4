package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/config"
	"github.com/keyward/keyward/config/source"
	"github.com/keyward/keyward/ring"
)

func newCheck() *cobra.Command {
	var o config.Options
	var against string
	cmd := &cobra.Command{
		Use:   "check DIR",
		Short: "Check rate-limit rules as ratelimit_config_check does, and say what is suspicious",
		Long: `Loads every file of the directory as the service does. Exit code 0: the rules load; what looks suspicious is
printed as warnings. Exit code 1: they do not; all faults are printed, the one that the service would log first.`,
		Example: `  keyward check ./config
  keyward check ./config --members 5       # is every epsilon enough for five members?
  keyward check ./new --against ./config   # which counts would begin anew in the middle of their windows?`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Members < 0 || o.Members > ring.MaxCapacity {
				return fmt.Errorf("--members %d: want 1 to %d", o.Members, ring.MaxCapacity)
			}
			return errors.Join(check(cmd.OutOrStdout(), args[0], o), compare(cmd.OutOrStdout(), against, args[0], o))
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "`directory` of the rules in force: name the limits whose counts begin anew")
	cmd.Flags().IntVar(&o.Members, "members", 0, "`N`, the members of the cluster, as --expect tells the service (default 1)")
	cmd.Flags().BoolVar(&o.MergeDomains, "merge-domain-configs", false, "let several files add to one domain (MERGE_DOMAIN_CONFIG)")
	return cmd
}

// newConfigCheck is what the program does when it is called ratelimit_config_check.
func newConfigCheck() *cobra.Command {
	var dir string
	var o config.Options
	cmd := &cobra.Command{
		Use:           "ratelimit_config_check",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return check(cmd.OutOrStdout(), dir, o) },
	}
	cmd.Flags().StringVar(&dir, "config_dir", "", "path to directory containing rate limit configs")
	cmd.Flags().BoolVar(&o.MergeDomains, "merge_domain_configs", false, "whether to merge configurations, referencing the same domain")
	// Its flags have one dash, and `-flag value` and `-flag=value` mean the same.
	args := make([]string, 0, len(os.Args))
	for _, a := range os.Args[1:] {
		if len(a) > 2 && a[0] == '-' && a[1] != '-' {
			a = "-" + a
		}
		args = append(args, a)
	}
	cmd.SetArgs(args)
	return cmd
}

func check(out io.Writer, dir string, o config.Options) error {
	files, err := source.ReadDir(dir)
	if err != nil {
		return err
	}
	report := config.Check(files, o)
	for _, f := range report.Faults {
		fmt.Fprintln(out, faultText(f))
	}
	for _, s := range config.Suspicions(files, report.Rules) {
		fmt.Fprintf(out, "warning: %s\n", s)
	}
	if len(report.Faults) > 0 {
		return errFailed
	}
	fmt.Fprintln(out, "all rate limit configs ok")
	return nil
}

// compare says what a change of rules does to the counts that stand.
func compare(out io.Writer, old, dir string, o config.Options) error {
	if old == "" {
		return nil
	}
	var rules [2]*config.Rules
	for i, d := range []string{old, dir} {
		files, err := source.ReadDir(d)
		if err != nil {
			return err
		}
		if rules[i], err = config.Load(files, o); err != nil {
			return fmt.Errorf("compare with %s: %w", old, err)
		}
	}
	for _, r := range config.Restarts(rules[0], rules[1]) {
		fmt.Fprintf(out, "warning: %v\n", r)
	}
	return nil
}

// faultText begins with the service's own words; the line comes last, where it is known.
func faultText(f config.Fault) string {
	if f.Line > 0 {
		return fmt.Sprintf("%s (line %d)", f.Error(), f.Line)
	}
	return f.Error()
}
