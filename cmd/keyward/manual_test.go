package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/app"
	"github.com/keyward/keyward/internal/config"
)

const manual = "../../docs/configuration.md"

// TestManualIsUpToDate requires that docs/configuration.md lists the flags, the keys of rules and the commands of the
// code.
func TestManualIsUpToDate(t *testing.T) {
	want := configuration()
	if *update {
		if err := os.WriteFile(manual, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(manual); err != nil || string(got) != want {
		t.Errorf("%s is out of date: go test ./cmd/keyward -update (%v)", manual, err)
	}
}

// configuration is the page, from the code.
func configuration() string {
	var b strings.Builder
	b.WriteString(`# Configuration

This page lists all settings. It is generated from the code; a test keeps it up to date.

* On this page: [flags of sidecar and xds](#flags-of-sidecar-and-xds),
  [keys of rules](#keys-of-rules), [commands](#commands).
* Meaning of the keys of rules: [rules.md](rules.md), [hot-keys.md](hot-keys.md)
* Environment variables of envoyproxy/ratelimit: [environment.md](environment.md)
* Values of the chart: [charts/keyward/README.md](../charts/keyward/README.md)
* Metrics, endpoints and ports: [operating.md](operating.md)

## Flags of sidecar and xds

The command line takes precedence over the environment. The programs report all errors at once and
do not start with any.

| flag | variable | default | meaning |
|---|---|---|---|
`)
	for _, f := range app.FlagRows() {
		fmt.Fprintf(&b, "| `%s%s` | `%s` | %s | %s |\n", f.Name, strings.TrimRight(" "+f.Kind, " "), f.Env, codeSpan(f.Default), cell(f.Usage))
	}
	b.WriteString("\n## Keys of rules\n\nThese keys belong under `metadata.keyward` of a descriptor with a `rate_limit`. The other keys of a\nrule are those of envoyproxy/ratelimit.\n\n| key | values | default |\n|---|---|---|\n")
	for _, k := range config.ExtensionKeys() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Key, k.Values, k.Default)
	}
	b.WriteString("\n## Commands\n\n`keyward COMMAND --help` shows details and examples. `keyward completion` and `keyward man`\ngenerate shell completions and manual pages.\n\n| command | purpose |\n|---|---|\n")
	commands(&b, newRoot())
	return b.String()
}

func commands(b *strings.Builder, c *cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.Name() == "help" || sub.Name() == "completion" || sub.Hidden {
			continue
		}
		if sub.Runnable() {
			fmt.Fprintf(b, "| `%s` | %s |\n", sub.CommandPath()+strings.TrimPrefix(strings.TrimSuffix(sub.Use, " [flags]"), sub.Name()), cell(sub.Short))
		}
		commands(b, sub)
	}
}

func codeSpan(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// TestQuickstartEnds holds that what the quickstart waits for is waited for with a bound and with the reason at its
// end, and that what it starts on the reader's machine is reached from there only.
func TestQuickstartEnds(t *testing.T) {
	text, err := os.ReadFile("../../docs/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	waits := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, "; do sleep "):
			t.Errorf("it may never end: %s", line)
		case strings.HasPrefix(line, "curl -fs "):
			waits++
			if !strings.Contains(line, "--retry 30 --retry-delay 1 --retry-all-errors") || !strings.Contains(line, "|| { tail -n 5 ") || !strings.HasSuffix(line, "false; }") {
				t.Errorf("it does not wait, or ends without a reason: %s", line)
			}
		case strings.HasPrefix(line, "bin/sidecar") && !strings.Contains(line, "--metrics 127.0.0.1:"):
			t.Errorf("others can reach it: %s", line)
		}
	}
	if waits != 5 {
		t.Errorf("%d waits found, want 5", waits)
	}
}
