package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/translate"
)

// translateFlags are the flags of `keyward translate`.
type translateFlags struct {
	options translate.Options
	limits  []string
	out     string
}

func newTranslate() *cobra.Command {
	var f translateFlags
	cmd := &cobra.Command{
		Use:     "translate FILE...",
		Short:   "Turn the rate-limit policies of a gateway into rules, and name what rules cannot express",
		Long:    helpText("translate"),
		Example: helpExamples("translate"),
		Args:    cobra.MinimumNArgs(1),
	}
	format := outputFlag(cmd)
	s := cmd.Flags()
	s.BoolVar(&f.options.Actions, "actions", false, "print, as comments, the rate limits by which Envoy makes the descriptors")
	s.StringSliceVar(&f.limits, "limit", nil, "`[KEY=]N/UNIT` for descriptors whose policy has no amount")
	s.StringVar(&f.options.Domain, "domain", "", "`domain` of the policies of Contour, kgateway and Gloo Gateway (default: that in the files)")
	s.Uint32Var(&f.options.Reserve, "reserve", 0, "`tokens` that a request of a rule that counts tokens reserves")
	s.Uint32Var(&f.options.Envoys, "envoys", 0, "`number` of Envoys: translate local limits too, as one limit of all of them together")
	s.StringVar(&f.out, "out", "", "`directory` to write one file for each domain to, instead of printing them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		files, err := readPolicies(args, cmd.InOrStdin())
		if err == nil {
			f.options.Limits, err = parseAmounts(f.limits)
		}
		if err != nil {
			return err
		}
		return f.run(files, cmd.OutOrStdout(), cmd.ErrOrStderr(), *format)
	}
	return cmd
}

// run translates files and shows the rules on out and the findings on errs.
func (f *translateFlags) run(files []config.File, out, errs io.Writer, format string) error {
	rules := translate.Translate(files, f.options)
	if f.out != "" {
		if err := writeDomains(f.out, rules.Files); err != nil {
			return err
		}
	}
	err := show(out, format, rules, func(out io.Writer) error {
		if f.out != "" {
			return nil
		}
		return printDomains(out, rules.Files)
	})
	if err != nil {
		return err
	}
	if format != "json" {
		printFindings(errs, rules.Findings)
	}
	switch {
	case rules.Policies == 0:
		return errors.New("no policy found: want a BackendTrafficPolicy, RateLimitPolicy, TokenRateLimitPolicy, HTTPProxy, TrafficPolicy or RateLimitConfig")
	case !rules.Complete():
		return errFailed
	}
	return nil
}

// parseAmounts parses the values of --limit.
func parseAmounts(values []string) (map[string]translate.Amount, error) {
	amounts := map[string]translate.Amount{}
	for _, v := range values {
		key, text := "", v
		if i := strings.LastIndex(v, "="); i >= 0 {
			key, text = v[:i], v[i+1:]
		}
		n, unit, _ := strings.Cut(text, "/")
		requests, err := strconv.ParseUint(n, 10, 32)
		if err != nil || !slices.Contains(translate.Units(), unit) {
			return nil, fmt.Errorf("--limit %s: want N/UNIT, as in 100/minute, with one of the units %s", v, strings.Join(translate.Units(), ", "))
		}
		amounts[key] = translate.Amount{Requests: uint32(requests), Unit: unit}
	}
	return amounts, nil
}

// readPolicies reads files, and standard input for -.
func readPolicies(names []string, stdin io.Reader) (files []config.File, err error) {
	for _, name := range names {
		content, err := readFile(name, stdin)
		if err != nil {
			return nil, err
		}
		if name == "-" {
			name = "stdin"
		}
		files = append(files, config.File{Name: name, Content: content})
	}
	return files, nil
}

// printDomains prints the rules of each domain as a document.
func printDomains(out io.Writer, files []translate.RulesFile) error {
	var b strings.Builder
	for i, f := range files {
		if i > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(f.YAML)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// writeDomains writes the rules of each domain to a file of its own.
func writeDomains(dir string, files []translate.RulesFile) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, f := range files {
		if err := os.WriteFile(filepath.Join(dir, domainFile(f.Domain, i)), []byte(f.YAML), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// domainFile returns a file name for a domain. The number distinguishes domains whose names differ in other characters.
func domainFile(domain string, i int) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, domain)
	return fmt.Sprintf("%02d-%s.yaml", i, cutText(name, 100))
}

func printFindings(out io.Writer, findings []config.Diagnostic) {
	for _, f := range findings {
		word := ""
		if f.Kind == translate.Note {
			word = "note: "
		}
		text := fmt.Sprintf("%s:%d: %s%s", f.File, f.Line, word, f.Text)
		if f.Hint != "" {
			text += "; " + f.Hint
		}
		fmt.Fprintln(out, printable(text))
	}
}
