package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/ops/migrate"
	"github.com/keyward/keyward/ring"
)

// migrateFlags are the flags of `keyward migrate`.
type migrateFlags struct {
	file, container, envFile, rules string
	image, patch, values            string
	replicas                        int
	all, clean                      bool
}

func newMigrate() *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use:     "migrate [-f FILE] [--env-file FILE] [--rules DIR]",
		Short:   "Plan the migration of an envoyproxy/ratelimit deployment, and write its manifest or values",
		Long:    helpText("migrate"),
		Example: helpExamples("migrate"),
		Args:    cobra.NoArgs,
	}
	format := outputFlag(cmd)
	f.define(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd.InOrStdin(), cmd.OutOrStdout(), *format) }
	return cmd
}

func (f *migrateFlags) define(cmd *cobra.Command) {
	image := "ghcr.io/keyward/keyward:latest"
	if version != "dev" {
		image = "ghcr.io/keyward/keyward:" + version
	}
	s := cmd.Flags()
	s.SortFlags = false
	s.StringVarP(&f.file, "filename", "f", "", "YAML `file` of the deployment: objects of Kubernetes, compose, or a chart's values")
	s.StringVar(&f.container, "container", "", "`name` of its container (default: the one whose image or command is ratelimit)")
	s.StringVar(&f.envFile, "env-file", "", "`file` of NAME=VALUE lines, which take precedence over those of -f")
	s.StringVar(&f.rules, "rules", "", "`directory` of the rules (default: those in the file's ConfigMaps)")
	s.IntVar(&f.replicas, "replicas", 0, "`number` of replicas (default: that of the deployment)")
	s.StringVar(&f.image, "image", image, "Keyward's image")
	s.StringVar(&f.patch, "patch", "", "`file` to write the patched manifest to")
	s.StringVar(&f.values, "values", "", "`file` to write values for charts/keyward to")
	s.BoolVar(&f.clean, "clean", false, "with --patch: remove variables that have no effect anymore")
	s.BoolVar(&f.all, "all", false, "list every variable of envoyproxy/ratelimit, not only those that are set")
}

func (f *migrateFlags) run(stdin io.Reader, out io.Writer, format string) error {
	d, err := f.read(stdin)
	if err != nil {
		return err
	}
	rep := d.Plan(f.all) // before the patch, which changes the manifest
	if err := f.write(d, out); err != nil {
		return err
	}
	if f.patch != "-" && f.values != "-" {
		if err := show(out, format, rep, func(w io.Writer) error { return printMigration(w, rep) }); err != nil {
			return err
		}
	}
	if len(rep.Rules.Faults) > 0 {
		return fmt.Errorf("the rules do not load: %s", rep.Rules.Faults[0])
	}
	return nil
}

// read reads the files of the flags.
func (f *migrateFlags) read(stdin io.Reader) (*migrate.Deployment, error) {
	d := &migrate.Deployment{Image: f.image, File: f.file, EnvFile: f.envFile, RulesDir: f.rules, Replicas: 1}
	if f.file == "" && f.envFile == "" && f.rules == "" {
		return nil, errors.New("want -f, --env-file or --rules: what is to be moved?")
	}
	if f.patch != "" && f.file == "" {
		return nil, errors.New("--patch wants -f: the manifest to patch")
	}
	if err := f.readDeployment(d, stdin); err != nil {
		return nil, err
	}
	if f.replicas != 0 {
		d.Replicas = f.replicas
	}
	if d.Replicas < 0 || d.Replicas > ring.MaxCapacity {
		return nil, fmt.Errorf("--replicas %d: want 1 to %d", d.Replicas, ring.MaxCapacity)
	}
	d.Replicas = max(1, d.Replicas) // the deployment may be scaled to 0
	return d, nil
}

// readDeployment reads the manifest, the environment file and the rules into d.
func (f *migrateFlags) readDeployment(d *migrate.Deployment, stdin io.Reader) error {
	if f.file != "" {
		text, err := readFile(f.file, stdin)
		if err != nil {
			return err
		}
		if d.Manifest, err = migrate.ParseManifest(text, f.container); err != nil {
			return fmt.Errorf("%s: %w", f.file, err)
		}
		d.Env, d.Rules, d.Replicas = d.Manifest.Env, d.Manifest.Rules, d.Manifest.Replicas
	}
	if f.envFile != "" {
		text, err := readFile(f.envFile, stdin)
		if err != nil {
			return err
		}
		env, err := migrate.ParseEnvFile(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", f.envFile, err)
		}
		d.Env = append(d.Env, env...)
	}
	if f.rules != "" {
		files, err := source.ReadDir(f.rules)
		if err != nil {
			return err
		}
		d.Rules = files
	}
	return nil
}

func readFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(name)
}

func (f *migrateFlags) write(d *migrate.Deployment, out io.Writer) error {
	put := func(name string, text []byte, err error) error {
		switch {
		case err != nil:
			return err
		case name == "-":
			_, err := out.Write(text)
			return err
		}
		return os.WriteFile(name, text, 0o644)
	}
	if f.values != "" {
		text, err := d.Values()
		if err := put(f.values, text, err); err != nil {
			return fmt.Errorf("--values: %w", err)
		}
	}
	if f.patch != "" {
		text, err := d.Manifest.Patched(f.image, d.Replicas, f.clean)
		if err := put(f.patch, text, err); err != nil {
			return fmt.Errorf("--patch: %w", err)
		}
	}
	return nil
}

func printMigration(out io.Writer, r *migrate.MigrationPlan) error {
	if r.Workload != "" {
		fmt.Fprintf(out, "%s, %d replicas: %s becomes %s\n", printable(r.Workload), r.Replicas, printable(r.OldImage), r.Image)
	} else {
		fmt.Fprintf(out, "%d replicas of %s\n", r.Replicas, r.Image)
	}
	printRules(out, &r.Rules)
	fmt.Fprintln(out, "\nVARIABLES")
	err := table(out, func(t io.Writer) { printVariables(t, r.Variables) })
	if err != nil {
		return err
	}
	if len(r.Variables) == 0 {
		fmt.Fprintln(out, "  none is set")
	}
	fmt.Fprintln(out, "\nWHAT DIFFERS HERE (all of it: docs/differences.md)")
	for _, d := range r.Differences {
		fmt.Fprintf(out, "  %s: %s\n", printable(d.Concerns), d.Text)
	}
	fmt.Fprintln(out, "\nTHE WAY (docs/migration.md)")
	for i, s := range r.Steps {
		fmt.Fprintf(out, "%d. %s\n", i+1, s.Title)
		for _, line := range s.Do {
			fmt.Fprintf(out, "     %s\n", printable(line))
		}
		fmt.Fprintln(out, "   back:")
		for _, line := range s.Back {
			fmt.Fprintf(out, "     %s\n", printable(line))
		}
	}
	return nil
}

func printVariables(t io.Writer, list []migrate.VariableOutcome) {
	for _, v := range list {
		value := v.Value
		switch {
		case v.From != "":
			value = strings.TrimSpace(v.Value + " (" + v.From + ")")
		case !v.Set:
			value = "default " + v.Default
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", v.Fate, printable(v.Name), printable(cutText(value, 40)), v.Note)
	}
}

func printRules(out io.Writer, r *migrate.RulesSummary) {
	switch {
	case r.Files == 0:
		fmt.Fprintln(out, "No rules were read: --rules DIR names them.")
	case len(r.Faults) > 0:
		for _, f := range r.Faults {
			fmt.Fprintln(out, "fault:", f)
		}
	default:
		fmt.Fprintf(out, "%d rules of %d files stay as they are: domains %s\n", r.Rules, r.Files, strings.Join(r.Domains, ", "))
	}
	for _, w := range r.Warnings {
		fmt.Fprintln(out, "warning:", w)
	}
}
