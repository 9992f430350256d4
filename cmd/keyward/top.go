package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// topOptions are the flags of `keyward top`.
type topOptions struct {
	pages   []string
	once    bool
	output  string
	every   time.Duration
	holders bool
}

func newTop() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:     "top",
		Short:   "Watch hot keys: their rates, limits, leases and routes",
		Long:    helpText("top"),
		Example: helpExamples("top"),
		Args:    cobra.NoArgs,
	}
	members := memberFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if o.pages, err = memberURLs(*members); err != nil {
			return err
		}
		return runTop(ctx, cmd.OutOrStdout(), &o)
	}
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "print the keys once and exit")
	f.StringVarP(&o.output, "output", "o", "text", "text or json (one object at a time)")
	f.DurationVar(&o.every, "every", time.Second, "time between updates")
	f.BoolVar(&o.holders, "holders", false, "show the holders of each key")
	return cmd
}

func runTop(ctx context.Context, out io.Writer, o *topOptions) error {
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("--output %q: want text or json", o.output)
	}
	if o.every <= 0 {
		return fmt.Errorf("--every %v: want more than 0", o.every)
	}
	screen, ok := out.(*os.File)
	if !ok || o.once || o.output == "json" || !term.IsTerminal(int(screen.Fd())) {
		return printTop(ctx, out, o)
	}
	return drawTop(ctx, screen, o)
}

// printTop prints frames one after the other.
func printTop(ctx context.Context, out io.Writer, o *topOptions) error {
	return printEvery(ctx, o.every, o.once, func() error {
		f := look(ctx, o.pages)
		switch {
		case hasEnded(ctx):
		case o.once && len(f.Members) == 0:
			return fmt.Errorf("no member answers:\n%s", printableLines(f.Silent))
		case o.output == "json":
			return json.NewEncoder(out).Encode(f)
		default:
			f.draw(out, size{}, o.holders)
		}
		return nil
	})
}

// hasEnded reports whether ctx has ended, so that what was read meanwhile is not complete.
func hasEnded(ctx context.Context) bool { return ctx.Err() != nil }

// printEvery calls print at once, and unless once is set, again at each interval until ctx ends. It returns the first error.
func printEvery(ctx context.Context, interval time.Duration, once bool, print func() error) error {
	again := time.NewTicker(interval)
	defer again.Stop()
	for {
		if err := print(); err != nil || once || hasEnded(ctx) {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// printableLines returns the texts, one per line, without control characters.
func printableLines(texts []string) string {
	var lines []string
	for _, text := range texts {
		lines = append(lines, "  "+printable(text))
	}
	return strings.Join(lines, "\n")
}

// drawTop redraws a terminal until q is pressed.
func drawTop(ctx context.Context, screen *os.File, o *topOptions) error {
	f := look(ctx, o.pages)
	return watchScreen(ctx, screen, o.every, watched{
		draw:    func(out io.Writer, to size) { f.draw(out, to, o.holders) },
		refresh: func() { f = look(ctx, o.pages) },
		press: func(k byte) {
			if k == 'h' {
				o.holders = !o.holders
			}
		},
	})
}

// watched shows something on a screen.
type watched struct {
	draw    func(out io.Writer, to size)
	refresh func()       // called before each draw but the first, and those after a key
	press   func(k byte) // called for each key that does not end it
}

// watchScreen redraws a terminal until q is pressed.
func watchScreen(ctx context.Context, screen *os.File, every time.Duration, w watched) error {
	keys := make(chan byte)
	if in := int(os.Stdin.Fd()); term.IsTerminal(in) {
		before, err := term.MakeRaw(in)
		if err != nil {
			return fmt.Errorf("read keys from the terminal: %w", err)
		}
		defer func() { _ = term.Restore(in, before) }()
		go readKeys(func(k byte) { keys <- k }) // ends with the process: a read of a terminal cannot be canceled
	}
	fmt.Fprint(screen, "\x1b[?1049h\x1b[?25l")       // another screen, without a cursor
	defer fmt.Fprint(screen, "\x1b[?25h\x1b[?1049l") // the old one
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		var b bytes.Buffer
		width, height, err := term.GetSize(int(screen.Fd()))
		if err != nil {
			width, height = 80, 24
		}
		w.draw(&b, size{width - 1, height}) // a full line would be wrapped by some terminals, or cut by \x1b[K
		// A raw terminal needs the carriage return; \x1b[K clears what an older, longer line left.
		text := bytes.ReplaceAll(bytes.TrimRight(b.Bytes(), "\n"), []byte("\n"), []byte("\x1b[K\r\n"))
		fmt.Fprintf(screen, "\x1b[H%s\x1b[K\x1b[J", text)
		select {
		case k := <-keys:
			switch k {
			case 'q', 'Q', 3, 4, 27: // Ctrl-C, Ctrl-D, Escape
				return nil
			}
			w.press(k)
		case <-again.C:
			w.refresh()
		case <-ctx.Done():
			return nil
		}
	}
}

// readKeys calls pressed for each key, until standard input ends.
func readKeys(pressed func(key byte)) {
	var b [1]byte
	for {
		if n, err := os.Stdin.Read(b[:]); err != nil {
			return
		} else if n > 0 {
			pressed(b[0])
		}
	}
}
