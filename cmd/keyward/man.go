package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "man --dir DIR",
		Short:   "Write the manual pages of all commands",
		Long:    helpText("man"),
		Example: helpExamples("man"),
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return writeMan(cmd.Root(), dir) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` to write to; made when it is not there")
	_ = cmd.MarkFlagRequired("dir") // the flag exists
	return cmd
}

// writeMan writes the pages of cmd and all below it.
func writeMan(cmd *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, manName(cmd)+".1"), []byte(manPage(cmd)), 0o644); err != nil {
		return fmt.Errorf("write a manual page: %w", err)
	}
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if err := writeMan(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage is a page of man(7): paragraphs are set as they were written, since tables stand in them.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	verbatim := func(text string) { fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(text)) }
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"Keyward %s\" Keyward\n", strings.ToUpper(roff(manName(cmd))), roff(version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	if cmd.Long != "" {
		b.WriteString(".SH DESCRIPTION\n")
		verbatim(cmd.Long)
	}
	flags(&b, "OPTIONS", cmd.NonInheritedFlags())
	flags(&b, "OPTIONS OF THE COMMAND ABOVE", cmd.InheritedFlags())
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		verbatim(cmd.Example)
	}
	var see []string
	if cmd.HasParent() {
		see = append(see, manName(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			see = append(see, manName(sub))
		}
	}
	for i, name := range see {
		if i == 0 {
			b.WriteString(".SH SEE ALSO\n")
		}
		fmt.Fprintf(&b, ".BR %s (1)\n", roff(name))
	}
	return b.String()
}

func flags(b *strings.Builder, title string, set *pflag.FlagSet) {
	if !set.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR \\fI%s\\fR\n%s\n", roff(name), roff(value), roff(usage))
	})
}

// roff is text that troff prints as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
