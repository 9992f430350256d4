// Command keyward is the tool of operators. It checks rules, explains decisions, prints Envoy's configuration,
// diagnoses clusters and runs a demo.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// version is set by the linker (-ldflags "-X main.version=v1.2.3").
var version = "dev"

// errFailed is the error of a command that has already printed why it fails.
var errFailed = errors.New("failed")

func main() {
	root := newRoot()
	if filepath.Base(os.Args[0]) == "ratelimit_config_check" {
		root = newConfigCheck()
	}
	if err := root.Execute(); err != nil {
		if !errors.Is(err, errFailed) {
			fmt.Fprintln(os.Stderr, "keyward:", err)
		}
		os.Exit(exitCode(err))
	}
}

// exitCode returns the exit code for an error: 2 for a wrong call of a command that distinguishes it, otherwise 1.
func exitCode(err error) int {
	if _, wrong := errors.AsType[usageError](err); wrong {
		return 2
	}
	return 1
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "keyward",
		Short:         "Global rate limits for Envoy, without Redis",
		Long:          helpText("keyward"),
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRing(), newCheck(), newBounds(), newEnvoyConfig(), newCerts(), newDemo(), newDrain(), newTop(), newBudgets(), newTap(), newHot())
	root.AddCommand(newMigrate(), newTranslate(), newMirror(), newSimulate()) // migration
	root.AddCommand(newAsk(), newInject(), newModule())
	root.AddCommand(newBench(), newJournal())
	root.AddCommand(newExplain(), newKeys(), newXDS(), newDoctor(), newMan()) // reading a cluster
	nameMembersAlike(root)
	return root
}
