package app

import (
	"strings"

	"github.com/spf13/pflag"
)

// FlagRow is a row of the table of flags in docs/configuration.md.
type FlagRow struct {
	Name, Env, Kind, Default, Usage string
}

// FlagRows returns the flags of sidecar and xds in the order of --help. It omits defaults that depend on the machine.
func FlagRows() []FlagRow {
	var f flags
	s := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.SortFlags = false
	f.define(s, func(string) string { return "" })
	var rows []FlagRow
	s.VisitAll(func(fl *pflag.Flag) {
		kind, usage := pflag.UnquoteUsage(fl)
		row := FlagRow{"--" + fl.Name, envName(fl.Name), kind, fl.DefValue, usage}
		switch row.Default {
		case "0", "false", "[]":
			row.Default = ""
		}
		if fl.Name == "node" {
			row.Default = ""
		}
		rows = append(rows, row)
	})
	return rows
}

// envName returns the environment variable of a flag.
func envName(flag string) string {
	return "KEYWARD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
