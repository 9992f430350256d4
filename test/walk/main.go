// Command walk executes a page of the documentation: it runs the page's ```sh blocks, one after the other, in one
// shell in the working directory. It stops at the first that fails and prints how long each took.
//
//	go run ./test/walk docs/quickstart.md                     # the whole page
//	go run ./test/walk docs/quickstart.md "On this machine"   # one chapter, a ## heading
//
// It skips blocks that start with ```sh no-run, and prints that it does. It ends every process that the page has
// started.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// block is one ```sh block of a page.
type block struct {
	chapter string
	line    int
	text    string
	skipped bool
}

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		fmt.Fprintln(os.Stderr, "usage: walk PAGE.md [CHAPTER]")
		os.Exit(2)
	}
	if err := walk(os.Args[1], strings.Join(os.Args[2:], "")); err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
}

func walk(page, chapter string) error {
	f, err := os.Open(page)
	if err != nil {
		return err
	}
	defer f.Close()
	blocks, err := blocks(f)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	script, n := script(page, chapter, blocks)
	if n == 0 {
		return fmt.Errorf("%s has nothing to run in chapter %q", page, chapter)
	}
	cmd := exec.Command("bash", "-s")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script), os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		<-signals
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}()
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // what the page left running
	if err != nil {
		return fmt.Errorf("%s: the last command above failed: %w", page, err)
	}
	return nil
}

// blocks returns the ```sh blocks of a page.
func blocks(r io.Reader) (out []block, err error) {
	var at *block
	chapter, other := "", false
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		switch fence := strings.HasPrefix(line, "```"); {
		case fence && at != nil:
			out, at = append(out, *at), nil
		case fence && other:
			other = false
		case fence && (line == "```sh" || strings.HasPrefix(line, "```sh ")):
			at = &block{chapter: chapter, line: n, skipped: strings.Contains(line, "no-run")}
		case fence:
			other = true
		case at != nil:
			at.text += line + "\n"
		case !other && strings.HasPrefix(line, "## "):
			chapter = strings.TrimPrefix(line, "## ")
		}
	}
	if at != nil {
		return nil, fmt.Errorf("line %d: a block without an end", at.line)
	}
	return out, lines.Err()
}

// script returns a shell script of the blocks, and their number.
func script(page, chapter string, blocks []block) (text string, n int) {
	var b strings.Builder
	b.WriteString("set -euo pipefail\nwalk_start=$EPOCHREALTIME\nwalk_took() { awk -v a=\"$1\" -v b=\"$EPOCHREALTIME\" 'BEGIN {printf \"%.1f\", b - a}'; }\n")
	for _, x := range blocks {
		if chapter != "" && x.chapter != chapter {
			continue
		}
		at := fmt.Sprintf("%s:%d", page, x.line)
		if x.skipped {
			fmt.Fprintf(&b, "echo '== %s: not for every machine, passed over'\n", at)
			continue
		}
		n++
		if strings.Contains(x.text, "429") { // a limit of a minute is used up: not while the minute ends
			b.WriteString("while ((EPOCHSECONDS % 60 > 49)); do sleep 1; done\n")
		}
		fmt.Fprintf(&b, "echo '== %s'\nwalk_block=$EPOCHREALTIME\n%secho \"== %s took $(walk_took $walk_block) s\"\n", at, x.text, at)
	}
	fmt.Fprintf(&b, "echo \"== %s: all of it took $(walk_took $walk_start) s\"\n", page)
	return b.String(), n
}
