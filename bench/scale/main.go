// Command scale writes the tables and plots of docs/scale.md: figures calculated with the real ring, and figures measured earlier. With
// -measure it takes these measurements.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	root := flag.String("root", "..", "the repository")
	check := flag.Bool("check", false, "write nothing; fail if the page or a plot is not what is calculated")
	measure := flag.String("measure", "", "measure these first, with commas: rings, envoys, pushes, gossips, meshes, handoffs, or all; in a network namespace of its own")
	machine := flag.String("machine", "", "the kind of machine that measures")
	envoy := flag.String("envoy", "", "binary of Envoy, for envoys")
	flag.Parse()
	if err := run(*root, *check, *measure, *machine, *envoy); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root string, check bool, measure, machine, envoy string) error {
	file := filepath.Join(root, "bench/scale/testdata/measured.json")
	m, err := Load(file)
	if err != nil && (measure == "" || !errors.Is(err, os.ErrNotExist)) {
		return err
	}
	if measure != "" {
		if err := takeMeasure(&m, file, measure, machine, envoy); err != nil {
			return err
		}
	}
	page, err := NewPage(m)
	if err != nil {
		return err
	}
	if check {
		return page.Check(root)
	}
	return page.Write(root)
}

// takeMeasure does what is named, and keeps each result at once.
func takeMeasure(m *Measured, file, what, machine, envoy string) error {
	if err := alone(); err != nil {
		return err
	}
	if machine != "" {
		m.Machine = fmt.Sprintf("%s, %d cores, %s, %s", machine, runtime.NumCPU(), runtime.GOARCH, runtime.Version())
	}
	if m.Dates == nil {
		m.Dates = map[string]string{}
	}
	all := []struct {
		name string
		run  func() error
	}{
		{"rings", func() error { return rings(m) }},
		{"envoys", func() error { return envoys(m, envoy) }},
		{"pushes", func() error { return pushes(m) }},
		{"meshes", func() error { return meshes(m, []int{3, 10, 30}) }},
		{"handoffs", func() error { return handoffs(m, []int{100_000, 500_000}) }},
		{"gossips", func() error { return gossips(m, []int{10, 30, 50}) }},
	}
	names := strings.Split(what, ",")
	for _, x := range all {
		if what != "all" && !slices.Contains(names, x.name) {
			continue
		}
		begin := time.Now()
		err := x.run()
		m.Dates[x.name] = time.Now().Format(time.DateOnly)
		if err := errors.Join(err, m.Save(file)); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", x.name, time.Since(begin).Round(time.Second))
	}
	return nil
}
