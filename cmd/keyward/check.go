package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/ops/envoycheck"
	"github.com/keyward/keyward/internal/ops/rulecheck"
	"github.com/keyward/keyward/ring"
)

func newCheck() *cobra.Command {
	var o config.Options
	var against, defaults, layouts string
	var envoys []string
	var strict, data bool
	var dataWindow time.Duration
	cmd := &cobra.Command{
		Use:     "check DIR",
		Short:   "Check rate limit rules for errors and likely mistakes",
		Long:    helpText("check"),
		Example: helpExamples("check"),
		Args:    cobra.ExactArgs(1),
	}
	output := outputFlagOf(cmd, "text", "json", "sarif")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Members < 0 || o.Members > ring.MaxCapacity {
			return fmt.Errorf("--members %d: want 1 to %d", o.Members, ring.MaxCapacity)
		}
		if dataWindow < minDataWindow {
			return fmt.Errorf("--data-window %v: want at least %v", dataWindow, minDataWindow)
		}
		if !data {
			dataWindow = 0
		}
		var err error
		if o.Defaults, err = readDefaults(defaults); err != nil {
			return err
		}
		if layouts != "" {
			if _, err := readLayouts(layouts); err != nil {
				return err
			}
		}
		r, err := checkFiles(args[0], against, o, dataWindow)
		if err == nil {
			err = r.envoyFiles(envoys)
		}
		if err == nil {
			err = r.write(cmd.OutOrStdout(), *output)
		}
		if err == nil && (!r.OK || strict && len(r.Warnings) > 0) {
			err = errFailed
		}
		return err
	}
	cmd.Flags().StringVar(&against, "against", "", "`directory` of the rules in force: print what changes")
	cmd.Flags().StringArrayVar(&envoys, "envoy", nil, "`file` with Envoy configuration, or a directory of them: check its rate limit quota filters (RLQS), too; repeatable")
	cmd.Flags().StringVar(&layouts, "federation", "", "`file` of the regions (--federation of the members): check it, too")
	cmd.Flags().IntVar(&o.Members, "members", 0, "`number` of members of the cluster, as --expect of the sidecars (default 1)")
	cmd.Flags().BoolVar(&o.MergeDomains, "merge-domain-configs", false, "merge files that define the same domain (MERGE_DOMAIN_CONFIG)")
	cmd.Flags().StringVar(&defaults, "rule-defaults", "", "`YAML` of the members' --rule-defaults, or @FILE")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit code 1 also for warnings")
	cmd.Flags().BoolVar(&data, "data", false, "the members have a journal (--data): do not warn about long windows that it contains")
	cmd.Flags().DurationVar(&dataWindow, "data-window", time.Hour, "with --data: the members' `duration` of the shortest window in the journal (--data-window)")
	return cmd
}

// readDefaults reads the value of --rule-defaults.
func readDefaults(value string) (config.Defaults, error) {
	content := []byte(value)
	if file, isFile := strings.CutPrefix(value, "@"); isFile {
		var err error
		if content, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("--rule-defaults: %w", err)
		}
	}
	d, err := config.ParseDefaults(content)
	if err != nil {
		return nil, fmt.Errorf("--rule-defaults: %w", err)
	}
	return d, nil
}

// newConfigCheck returns the command that runs when the program is called ratelimit_config_check.
func newConfigCheck() *cobra.Command {
	var dir string
	var o config.Options
	cmd := &cobra.Command{
		Use:           "ratelimit_config_check",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := checkFiles(dir, "", o, 0)
			if err == nil {
				err = r.write(cmd.OutOrStdout(), "text")
			}
			if err == nil && !r.OK {
				err = errFailed
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "config_dir", "", "path to directory containing rate limit configs")
	cmd.Flags().BoolVar(&o.MergeDomains, "merge_domain_configs", false, "whether to merge configurations, referencing the same domain")
	// Its flags have one dash, and their values follow after a space or =.
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

// checkReport is the JSON of `keyward check`. Fields are only ever added.
type checkReport struct {
	OK       bool                `json:"ok"` // the rules load
	Faults   []config.Diagnostic `json:"faults"`
	Warnings []config.Diagnostic `json:"warnings"`
	Changes  []config.Diagnostic `json:"changes,omitempty"`

	lines map[string][]string // of the files, to show them
	rules *config.Rules       // nil if the files have faults
}

// checkFiles checks the rules at path. If old is not empty, it compares them with the rules at old. dataWindow is the
// members' --data-window, or 0 if they have no --data.
func checkFiles(path, old string, o config.Options, dataWindow time.Duration) (*checkReport, error) {
	files, err := readRules(path)
	if err != nil {
		return nil, err
	}
	r := &checkReport{Faults: []config.Diagnostic{}, Warnings: []config.Diagnostic{}, lines: map[string][]string{}}
	for _, f := range files {
		r.lines[f.Name] = strings.Split(string(f.Content), "\n")
	}
	report := config.Check(files, o)
	r.OK, r.rules = len(report.Faults) == 0, report.Rules
	r.Faults = append(r.Faults, report.Faults...)
	r.Warnings = append(r.Warnings, rulecheck.Warnings(files, report.Rules, dataWindow)...)
	if report.Rules != nil && len(report.Rules.Rules()) == 0 {
		r.Warnings = append(r.Warnings, noRules(path, len(files)))
	}
	if old == "" || report.Rules == nil {
		return r, nil
	}
	before, err := loadPath(old, o)
	if err != nil {
		return nil, fmt.Errorf("compare with %s: %w", old, err)
	}
	r.Changes = rulecheck.Changes(before, report.Rules)
	return r, nil
}

// envoyFiles adds the findings in Envoy's configuration.
func (r *checkReport) envoyFiles(paths []string) error {
	var files []config.File
	for _, path := range paths {
		more, err := readEnvoy(path)
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	for _, f := range files {
		r.lines[f.Name] = strings.Split(string(f.Content), "\n")
	}
	found := envoycheck.Check(files, r.rules)
	r.Faults, r.Warnings = append(r.Faults, found.Faults...), append(r.Warnings, found.Warnings...)
	r.OK = r.OK && len(found.Faults) == 0
	return nil
}

// readEnvoy reads a file, or those of a directory and its subdirectories that are YAML or JSON.
func readEnvoy(path string) (files []config.File, err error) {
	err = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || name != path && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			return err
		}
		content, err := os.ReadFile(name)
		files = append(files, config.File{Name: name, Content: content})
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no .yaml, .yml or .json file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--envoy: %w", err)
	}
	return files, nil
}

// noRules returns the warning about a path without any rule.
func noRules(path string, files int) config.Diagnostic {
	f := config.Diagnostic{Kind: "no-rules", File: path, Text: "no file has a rate_limit: no request is limited"}
	if files > 0 {
		return f
	}
	f.Text = "the directory has no files: no request is limited"
	entries, _ := os.ReadDir(path) // it has just been read
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			f.Hint = fmt.Sprintf("subdirectories are not read: did you mean %s?", filepath.Join(path, e.Name()))
			break
		}
	}
	return f
}

// readRules reads a directory of rules, or one file.
func readRules(path string) ([]config.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	if !info.Mode().IsRegular() {
		return source.ReadDir(path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return []config.File{{Name: path, Content: content}}, nil
}

func (r *checkReport) write(out io.Writer, format string) error {
	if format == "sarif" {
		return writeSARIF(out, r)
	}
	return show(out, format, r, func(out io.Writer) error {
		var b strings.Builder
		for _, f := range r.Faults {
			fmt.Fprintln(&b, faultText(f))
			r.source(&b, f)
		}
		for _, w := range r.Warnings {
			fmt.Fprintf(&b, "warning: %s: %s\n", where(w), w.Text)
			r.source(&b, w)
		}
		for _, c := range r.Changes {
			word := "change"
			if c.Kind == rulecheck.CountsReset {
				word = "warning"
			}
			fmt.Fprintf(&b, "%s: %s:%d: %s\n", word, c.File, c.Line, c.Text)
		}
		if r.OK {
			fmt.Fprintln(&b, "all rate limit configs ok")
		}
		_, err := io.WriteString(out, b.String())
		return err
	})
}

// where returns the file, and the line if that is known.
func where(f config.Diagnostic) string {
	if f.Line > 0 {
		return fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	return f.File
}

// faultText starts with the service's message and ends with the line, if that is known.
func faultText(f config.Diagnostic) string {
	if f.Line > 0 {
		return fmt.Sprintf("%s: %s (line %d)", f.File, f.Text, f.Line)
	}
	return fmt.Sprintf("%s: %s", f.File, f.Text)
}

// source prints the line of f with a caret below the column, and the hint.
func (r *checkReport) source(b *strings.Builder, f config.Diagnostic) {
	if lines := r.lines[f.File]; f.Line > 0 && f.Line <= len(lines) {
		line := strings.TrimSuffix(lines[f.Line-1], "\r")
		number := fmt.Sprintf("%5d | ", f.Line)
		fmt.Fprintf(b, "%s%s\n%s| %s^\n", number, cutText(visible(line), 200), strings.Repeat(" ", len(number)-2), indent(line, f.Column))
	}
	if f.Hint != "" {
		fmt.Fprintf(b, "      = %s\n", f.Hint)
	}
}

// visible replaces the control characters of a line, except tabs.
func visible(line string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0) {
			return '?'
		}
		return r
	}, line)
}

// indent returns the line up to the column, with blanks for all characters except tabs. Without a column, it ends at
// the first character that is not blank.
func indent(line string, column int) string {
	if column == 0 {
		column = 1 + len(line) - len(strings.TrimLeft(line, " \t-"))
	}
	var b strings.Builder
	for _, r := range line {
		if column--; column < 1 {
			break
		}
		if r != '\t' {
			r = ' '
		}
		b.WriteRune(r)
	}
	return b.String()
}

// loadPath loads a directory of rules, or one file.
func loadPath(path string, o config.Options) (*config.Rules, error) {
	files, err := readRules(path)
	if err != nil {
		return nil, err
	}
	return config.Load(files, o)
}
