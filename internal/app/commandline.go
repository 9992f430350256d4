package app

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/internal/suggest"
)

// setAll sets the flags of a command line and returns all faults, where FlagSet.Parse would stop at the first one.
// The faults contain pflag.ErrHelp if the command line asks for help.
func setAll(s *pflag.FlagSet, args []string) (faults []error) {
	var stray []string
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			for _, arg := range args {
				stray = append(stray, withoutSecrets(arg))
			}
			args = nil
			continue
		}
		name := strings.TrimLeft(arg, "-")
		if name == arg || name == "" {
			stray = append(stray, withoutSecrets(arg))
			continue
		}
		var err error
		if args, err = setOne(s, arg, args); err != nil {
			faults = append(faults, err)
		}
	}
	if len(stray) > 0 {
		faults = append(faults, fmt.Errorf("unexpected arguments: %s", strings.Join(stray, " ")))
	}
	return faults
}

// withoutSecrets returns an argument as errors may show it: URLs can contain passwords.
func withoutSecrets(arg string) string {
	if before, _, url := strings.Cut(arg, "://"); url {
		return before + "://..."
	}
	return arg
}

// setOne sets the flag that arg names and returns the arguments after its value.
func setOne(s *pflag.FlagSet, arg string, args []string) ([]string, error) {
	given, value, assigned := strings.Cut(arg, "=")
	name, long := strings.CutPrefix(given, "--")
	fl := s.Lookup(name)
	switch {
	case name == "help" || given == "-h" || given == "-help":
		return args, pflag.ErrHelp
	case fl == nil || !long:
		return noSuchFlag(s, given, assigned, args)
	case assigned:
	case fl.NoOptDefVal != "":
		value = fl.NoOptDefVal
	case len(args) == 0:
		return args, fmt.Errorf("%s: the value is missing: want %s", given, kindOf(fl))
	default:
		value, args = args[0], args[1:]
	}
	fl.Changed = true
	if !set(fl, value) {
		return args, fmt.Errorf("%s %q: want %s", given, value, kindOf(fl))
	}
	return args, nil
}

// set sets a flag and reports whether the value is of its kind. Otherwise the flag keeps its value, so that validate
// reports no further fault for it.
func set(fl *pflag.Flag, value string) bool {
	before := fl.Value.String()
	if fl.Value.Set(value) == nil {
		return true
	}
	if _, list := fl.Value.(pflag.SliceValue); !list {
		_ = fl.Value.Set(before) // before is valid
	}
	return false
}

// noSuchFlag returns an error that suggests the flag with the most similar name. It skips the argument after an
// unknown flag, unless that looks like a flag.
func noSuchFlag(s *pflag.FlagSet, given string, assigned bool, args []string) ([]string, error) {
	var names []string
	s.VisitAll(func(fl *pflag.Flag) { names = append(names, fl.Name) })
	name := strings.TrimLeft(given, "-")
	meant := name
	if s.Lookup(name) == nil {
		meant = suggest.Nearest(name, names)
	}
	fl := s.Lookup(meant)
	takesValue := fl == nil || fl.NoOptDefVal == ""
	if !assigned && takesValue && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	if fl == nil {
		return args, fmt.Errorf("%s: no such flag; --help lists them", given)
	}
	return args, fmt.Errorf("%s: no such flag; did you mean --%s?", given, meant)
}

// kindOf describes the values that a flag takes.
func kindOf(fl *pflag.Flag) string {
	switch fl.Value.Type() {
	case "int":
		return "a whole number"
	case "uint32":
		return "a whole number from 0 to 4294967295"
	case "float64":
		return "a number"
	case "duration":
		return "a duration like 500ms or 1m30s"
	case "bool":
		return "true or false"
	case "stringSlice":
		return "values with commas between them"
	}
	return "a text"
}
