package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/promtext"
)

// notesShown is the number of notes below the table.
const notesShown = 6

// showDemo sends traffic, executes acts and draws the state: twice a second on a terminal, and every five seconds
// without one, when the acts run by themselves.
func showDemo(ctx context.Context, out io.Writer, s *stage) error {
	if err := nextSecond(ctx); err != nil {
		return err
	}
	s.start = time.Now()
	sending, cancel := context.WithCancel(ctx)
	var acting sync.WaitGroup
	defer acting.Wait()
	defer cancel()
	if s.until > 0 {
		defer time.AfterFunc(s.until, cancel).Stop()
	}
	every, draw := 5*time.Second, func() { s.draw(out, "\n") }
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && term.IsTerminal(int(os.Stdin.Fd())) {
		restore, err := keyboard(s.ending, s.press)
		if err != nil {
			return err
		}
		defer restore()
		every, draw = 500*time.Millisecond, s.redraw(out)
	} else {
		acting.Go(func() { s.script(sending) })
	}
	acting.Go(func() { s.act(sending) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		send(sending, s.envoy.Listener, s.keys)
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			draw()
		case <-done:
			acting.Wait()
			draw()
			return s.verdict(out)
		}
	}
}

// keyboard passes single keys from the terminal to press, until restore is called or ending ends the demo.
func keyboard(ending *ending, press func(byte)) (restore func(), err error) {
	in := int(os.Stdin.Fd())
	before, err := term.MakeRaw(in)
	if err != nil {
		return nil, fmt.Errorf("read keys from the terminal: %w", err)
	}
	go readKeys(press) // ends with the process: a read of a terminal cannot be canceled
	restore = func() { _ = term.Restore(in, before) }
	ending.onTerminal(restore)
	return restore, nil
}

// press handles one key.
func (s *stage) press(key byte) {
	switch key {
	case 'q', 'Q', 3, 4, 27: // Ctrl-C, Ctrl-D, Escape
		s.ending.ask()
	}
	for _, a := range acts() {
		if a.key == key {
			s.ask(a)
		}
	}
}

// script executes every act once, for a demo without a terminal.
func (s *stage) script(ctx context.Context) {
	for _, a := range acts() {
		select {
		case s.queue <- a:
		case <-ctx.Done():
			return
		}
	}
}

func (s *stage) busy() (on bool) {
	s.set(func() { on = s.now != "" })
	return on
}

// nextSecond waits for the start of a window, so that the first one is complete.
func nextSecond(ctx context.Context) error {
	now := time.Now()
	if !pause(ctx, now.Truncate(time.Second).Add(time.Second).Sub(now)) {
		return ctx.Err()
	}
	return nil
}

// windows returns the number of one-second windows since start, each of which admits a full limit.
func windows(start, now time.Time) int64 { return now.Unix() - start.Unix() + 1 }

// redraw returns a function that replaces the last drawing.
func (s *stage) redraw(out io.Writer) func() {
	lines := 0
	return func() {
		var b bytes.Buffer
		s.draw(&b, "\r\n") // a raw terminal requires the carriage return
		if lines > 0 {
			fmt.Fprintf(out, "\x1b[%dA\x1b[J", lines)
		}
		lines = bytes.Count(b.Bytes(), []byte("\n"))
		_, _ = out.Write(b.Bytes())
	}
}

func (s *stage) draw(out io.Writer, newline string) {
	var b strings.Builder
	now := time.Now()
	r := s.at(context.Background())
	fmt.Fprintf(&b, "\n  %-12s %-11s %7s  %-17s %7s  %s\n", "API KEY", "COUNTED BY", "SENT/s", "ADMITTED / LIMIT", "DENIED", "")
	for _, k := range s.keys {
		most := k.most(s.start, now)
		allowed := k.allowed.Load()
		fmt.Fprintf(&b, "  %-12s %-11s %7d  %17s %7d  %s\n", k.name, s.owner(r, k), k.rate+int(k.extra.Load()), fmt.Sprintf("%d / %d", allowed, most), k.denied.Load(), bar(allowed, most))
	}
	direct, misrouted := s.directHits()
	fmt.Fprintf(&b, "\n  %3.0f s  calls straight to the key's owner: %s   %s\n", now.Sub(s.start).Seconds(), ratio(direct, misrouted), s.above(now))
	s.set(func() { s.footer(&b) })
	_, _ = io.WriteString(out, strings.ReplaceAll(b.String(), "\n", newline))
}

// footer prints the members, the notes and the keys of the acts. The caller holds s.mu.
func (s *stage) footer(b *strings.Builder) {
	b.WriteString("  ")
	for _, name := range s.names {
		mark, state := "●", s.state[name]
		if state != "" {
			mark, state = "○", " "+state
		}
		fmt.Fprintf(b, "%s %s%s   ", mark, name, state)
	}
	b.WriteString("\n")
	for _, n := range s.notes[max(0, len(s.notes)-notesShown):] {
		fmt.Fprintf(b, "  %s\n", n)
	}
	switch {
	case s.now != "":
		fmt.Fprintf(b, "  ... %s\n", s.now)
	default:
		b.WriteString("  ")
		for _, a := range acts() {
			fmt.Fprintf(b, "[%c] %s   ", a.key, a.what)
		}
		b.WriteString("[q] quit\n")
	}
}

// above describes by how many hits limits were exceeded, and the bound for the crashes so far.
func (s *stage) above(now time.Time) string {
	var over, bound int64
	for _, k := range s.keys {
		over += k.over(s.start, now)
	}
	s.set(func() { bound = s.bound })
	if bound == 0 {
		return fmt.Sprintf("above the limits: %d", over)
	}
	return fmt.Sprintf("above the limits: %d (bound for the crashes: %d)", over, bound)
}

func bar(part, whole int64) string {
	const width = 24
	n := int(min(width, part*width/max(1, whole)))
	return strings.Repeat("█", n) + strings.Repeat("░", width-n)
}

func ratio(direct, misrouted float64) string {
	if direct+misrouted == 0 {
		return "none yet"
	}
	return fmt.Sprintf("%.1f %%", 100*direct/(direct+misrouted))
}

// directHits returns the sums of the members' counters of calls with a key. The counters of a member end with it.
func (s *stage) directHits() (direct, misrouted float64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, page := range s.pages {
		body, err := lab.Get(ctx, "http://"+page+"/metrics")
		if err != nil {
			continue
		}
		metrics, err := promtext.Parse(body)
		if err != nil {
			continue
		}
		direct += metrics.Sum("keyward_direct_total")
		misrouted += metrics.Sum("keyward_misrouted_total")
	}
	return direct, misrouted
}

// verdict prints a summary. It returns an error if requests failed or limits were exceeded by more than the bound.
func (s *stage) verdict(out io.Writer) error {
	var allowed, denied, failed, missed, over int64
	end := time.Now()
	for _, k := range s.keys {
		allowed += k.allowed.Load()
		denied += k.denied.Load()
		failed += k.failed.Load()
		missed += k.missed.Load()
		over += k.over(s.start, end)
	}
	fmt.Fprintf(out, "\r\n  %d requests allowed, %d denied, %d failed; %s.\r\n", allowed, denied, failed, s.above(end))
	if missed > 0 {
		fmt.Fprintf(out, "  %d requests had no sidecar to count them while all were killed.\r\n", missed)
	}
	if over > s.bound || failed > 0 {
		return fmt.Errorf("demo failed: %d requests failed, and %d were admitted above their limit (bound %d)", failed, over, s.bound)
	}
	return nil
}
