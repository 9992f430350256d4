// Command run runs the project's tests in stages. It prints a line when a stage begins and ends, and finally tables
// of the stages with their budgets, of the slowest tests, and of tests that were skipped.
//
//	go run ./test/run quick              # lint, unit tests without the race detector, one Envoy, one cluster: a few minutes
//	go run ./test/run test               # everything that has to pass before a change lands
//	go run ./test/run deep               # what takes hours: many seeds, soak, fuzzing
//	go run ./test/run -only e2e,sim test # some of its stages
//	go run ./test/run -only e2e -match 'Hot|Lease' test
//
// Stages with real processes share the processors by the load that each test declares. Each test has its own network
// namespace (on Linux, as root). Stages that only compute run at idle priority. What a stage needs and the machine
// lacks is installed on Debian as root. Elsewhere the stage is skipped, and the last table shows the command that
// installs it. With KEYWARD_REQUIRE=all a skipped stage or test is a failure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// room is the largest sum of declared loads, as a fraction of the processors: tests sometimes use more than they
// declare.
const room = 0.75

func main() {
	only := flag.String("only", "", "run these `stages` alone, separated by commas")
	match := flag.String("match", "", "run only the jobs of a stage whose names match this `pattern`: the tests of e2e, for example")
	install := flag.Bool("install", os.Getuid() == 0, "install missing Debian packages with apt-get")
	list := flag.Bool("list", false, "list the stages and end")
	flag.Usage = usage
	flag.Parse()
	if flag.NArg() != 1 {
		usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, flag.Arg(0), *only, *match, *install, *list)
	if err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		stop()
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprint(os.Stderr, "usage: run [flags] quick|test|deep\n\nRuns the project's tests in stages; docs/contributing.md says what belongs into which.\n\n")
	flag.PrintDefaults()
}

func run(ctx context.Context, suite, only, match string, install, list bool) error {
	root, err := repository()
	if err != nil {
		return err
	}
	m, err := newMachine(root, install, os.Getenv("KEYWARD_REQUIRE") == "all")
	if err != nil {
		return err
	}
	m.match, err = regexp.Compile(match)
	if err != nil {
		return fmt.Errorf("-match: %w", err)
	}
	stages, err := choose(suite, only)
	if err != nil {
		return err
	}
	if list {
		for _, s := range stages {
			fmt.Printf("%-10s %s (budget %s)\n", s.name, s.about, short(s.budget))
		}
		return nil
	}
	m.stages = stages
	q := newQueue(m, stages, room*float64(runtime.NumCPU()), os.Stdout)
	q.run(ctx)
	q.report()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if failed := q.failed(); len(failed) > 0 {
		return fmt.Errorf("failed: %s; whole outputs are in %s", strings.Join(failed, ", "), logs)
	}
	return nil
}

// choose returns the chosen stages of a suite.
func choose(suite, only string) ([]*stage, error) {
	make, ok := suites[suite]
	if !ok {
		return nil, fmt.Errorf("no suite %q: there are quick, test and deep", suite)
	}
	stages := make()
	if only == "" {
		return stages, nil
	}
	wanted := strings.Split(only, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(stages, func(s *stage) bool { return s.name == name }) {
			return nil, fmt.Errorf("-only: no stage %q in %s; -list lists them", name, suite)
		}
	}
	stages = slices.DeleteFunc(stages, func(s *stage) bool { return !slices.Contains(wanted, s.name) })
	for _, s := range stages {
		s.after = slices.DeleteFunc(s.after, func(name string) bool { return !slices.Contains(wanted, name) })
	}
	return stages, nil
}

// repository returns the root of the repository, which must be the working directory.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat("arch_test.go"); err != nil {
		return "", errors.New("run it in the root of the repository")
	}
	return dir, nil
}
