package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/durable"
)

func newJournal() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "journal",
		Short: "Check and print the journals in a --data directory",
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.AddCommand(newJournalVerify(), newJournalShow())
	return cmd
}

// usageError is an error in how a command was called, for commands whose exit code 1 is a result.
type usageError struct{ error }

// Unwrap returns the error.
func (e usageError) Unwrap() error { return e.error }

// journalDir accepts one argument, the directory.
func journalDir(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("%s: want one directory, the --data of members or a copy of it", cmd.CommandPath())}
	}
	return nil
}

// journalOutput adds -o/--output, and --json as a short form of -o json. The result is called when the command runs.
func journalOutput(cmd *cobra.Command) func() string {
	output := outputFlag(cmd)
	short := cmd.Flags().Bool("json", false, "the same as -o json")
	return func() string {
		if *short {
			return "json"
		}
		return *output
	}
}

// inspectJournals reads all journals below dir. It returns an error if there are none.
func inspectJournals(dir string, visit durable.Visitor) ([]durable.Inspection, error) {
	all, err := durable.Inspect(dir, visit)
	if err != nil {
		return nil, usageError{fmt.Errorf("read journals: %w", err)}
	}
	if len(all) == 0 {
		return nil, usageError{fmt.Errorf("%s has no journals: want the --data directory of a member that has counted a hit of "+
			"a long window, or a copy of it", dir)}
	}
	return all, nil
}

// bytesText returns a size in the largest unit of which there is one, such as "1.5 MiB".
func bytesText(n int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
