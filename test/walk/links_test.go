package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinksLeadSomewhere requires that every file and heading that a page links to exists.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, name := range manual(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(prose(string(text)), -1) {
			to, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, ":") {
				continue
			}
			file := name
			if to != "" {
				file = filepath.Join(filepath.Dir(name), to)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
				continue
			}
			if heading != "" && strings.HasSuffix(file, ".md") && !headings(t, file)[heading] {
				t.Errorf("%s links to %s, and there is no such heading", name, m[1])
			}
		}
	}
}

// manual returns the pages of the documentation.
func manual(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*/*.md", "../../charts/*/*.md", "../../bench/*.md", "../../internal/peer/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 20 {
		t.Fatalf("only %d pages found", len(pages))
	}
	return pages
}

// prose returns a page without its code blocks.
func prose(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
		} else if !inside {
			b.WriteString(line)
		}
	}
	return b.String()
}

// headings returns the anchors of a page's headings.
func headings(t *testing.T, name string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	found, drop := map[string]bool{}, regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
	for line := range strings.Lines(prose(string(text))) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		found[strings.ReplaceAll(drop.ReplaceAllString(title, ""), " ", "-")] = true
	}
	return found
}
