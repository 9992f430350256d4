package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shownCommand is a command in a page of the manual, with what the page prints below it.
type shownCommand struct{ page, line, output string }

// shownCommands lists the commands of keyward that a page shows in its ```text blocks.
func shownCommands(t *testing.T, page string) (all []shownCommand) {
	t.Helper()
	for _, block := range fenced(t, page, "text") {
		before := len(all)
		for line := range strings.Lines(block) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				all = append(all, shownCommand{page: page, line: strings.TrimSpace(command)})
			} else if len(all) > before {
				all[len(all)-1].output += line
			}
		}
	}
	return all
}

// fenced lists the blocks of a page in one language.
func fenced(t *testing.T, page, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(text), "```") {
		if block, ok := strings.CutPrefix(part, language+"\n"); ok && i%2 == 1 {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// TestPagesShowCommandsAsTheyAre holds the pages that lead an operator step by step against the program: each command
// has its flags, and what needs no member prints what the page says.
func TestPagesShowCommandsAsTheyAre(t *testing.T) {
	const introduce = "../../docs/introduce-a-limit.md"
	commands := append(shownCommands(t, introduce), shownCommands(t, "../../docs/answer-429.md")...)
	rules := fenced(t, introduce, "yaml")
	t.Chdir(t.TempDir())
	for _, block := range rules {
		name, content, _ := strings.Cut(block, "\n")
		writeRules(t, strings.TrimPrefix(name, "# "), content)
		if strings.HasPrefix(name, "# new/") {
			writeRules(t, "enforce/shop.yaml", strings.Replace(content, "        shadow_mode: true\n", "", 1))
		}
	}
	parsed, ran := 0, 0
	for _, c := range commands {
		args, ok := strings.CutPrefix(c.line, "keyward ")
		if !ok {
			continue
		}
		cmd, rest, err := newRoot().Find(strings.Fields(args))
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err != nil {
			t.Errorf("%s: %s: %v", c.page, c.line, err)
		}
		parsed++
		if cmd.Name() != "check" && !strings.Contains(c.line, " --rules ") || cmd.Name() == "simulate" || cmd.Name() == "doctor" {
			continue
		}
		ran++
		if out, err := run(t, strings.Fields(args)...); err != nil || out != c.output {
			t.Errorf("%s: %s: %v\n got %s\nwant %s", c.page, c.line, err, out, c.output)
		}
	}
	if parsed < 9 || ran < 4 {
		t.Errorf("%d commands found, %d of them run", parsed, ran)
	}
}

// writeRules writes a file of rules and the folder around it.
func writeRules(t *testing.T, name, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}
