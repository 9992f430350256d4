package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// heading matches the first line of a version's section: "## 1.2.3 (2026-01-31)", "## v1.2.3" or "## Unreleased".
var heading = regexp.MustCompile(`(?m)^## +\[?v?([^\s\]]+)\]?.*$`)

// section returns the text below the heading of a version, and whether there is one.
func section(changelog, version string) (text string, found bool) {
	all := heading.FindAllStringSubmatchIndex(changelog, -1)
	for i, m := range all {
		if changelog[m[2]:m[3]] != version {
			continue
		}
		end := len(changelog)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		return strings.TrimSpace(changelog[m[1]:end]), true
	}
	return "", false
}

// notes returns the release notes of a tag: its section of CHANGELOG.md. A dry run of a version without one takes
// the section Unreleased.
func notes(root, tag string, dryRun bool) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	version := strings.TrimPrefix(tag, "v")
	text, found := section(string(b), version)
	if !found && dryRun {
		version = "Unreleased"
		text, found = section(string(b), version)
	}
	switch {
	case !found:
		return "", fmt.Errorf("CHANGELOG.md has no section %s", version)
	case text == "":
		return "", fmt.Errorf("CHANGELOG.md: the section %s is empty", version)
	}
	return text + "\n", nil
}

func printNotes(_ context.Context, o options) error {
	text, err := notes(o.root, o.tag, o.dryRun)
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(text)
	return err
}
