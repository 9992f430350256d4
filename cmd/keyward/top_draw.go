package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// size is the size of a terminal. The zero value is unlimited.
type size struct{ width, height int }

// draw writes f within the size.
func (f *frame) draw(out io.Writer, to size, holders bool) {
	var b bytes.Buffer
	hot := 0
	for _, k := range f.Keys {
		if k.Hot {
			hot++
		}
	}
	fmt.Fprintf(&b, "keyward top  %s  %s, %s, %s\n", f.Time.Format(time.TimeOnly),
		count(len(f.Members), "member"), count(hot, "hot key"), count(len(f.Routes), "route"))
	for _, s := range f.Silent {
		fmt.Fprintf(&b, "not shown: %s\n", printable(s))
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nKEY\tOWNER\tRATE/s\tLIMIT\tUSED\tLENT\tDONE")
	for i := range f.Keys {
		f.Keys[i].draw(t, f.Time, holders)
	}
	for _, r := range f.unmatched() {
		fmt.Fprintf(t, "%s\t\t\t\t\t\t%s\n", keyName(f.Routes[r].Domain, f.Routes[r].Name, f.Routes[r].OwnerString), routeText(&f.Routes[r]))
	}
	_ = t.Flush() // to memory
	if len(f.Keys) == 0 && len(f.Routes) == 0 {
		b.WriteString("No key is hot or leased.\n")
	}
	writeLines(out, b.String(), to)
}

// writeLines writes the lines of text that fit the size.
func writeLines(out io.Writer, text string, to size) {
	for n, line := range strings.SplitAfter(text, "\n") {
		if to.height > 0 && n >= to.height-1 {
			break
		}
		_, _ = io.WriteString(out, cut(line, to.width))
	}
}

func (k *topKey) draw(t io.Writer, now time.Time, holders bool) {
	fmt.Fprintf(t, "%s\t%s\t%.0f\t%s\t%s\t%s\t%s\n", keyName(k.Domain, k.Name, k.OwnerString), printable(k.Owner), k.Rate,
		limitText(k.Limit, k.Window), share(k.Used, k.Limit), share(k.Lent, k.Limit), k.done(now))
	if !holders {
		return
	}
	for _, h := range k.Holders {
		fmt.Fprintf(t, "  %s\t\t%.0f\t\t\t%s\t%s\n", printable(h.Member), h.Demand, share(h.Lent, k.Limit), k.heldBy(h.Member))
	}
}

// heldBy describes a lease as its holder reports it.
func (k *topKey) heldBy(member string) string {
	for _, h := range k.Held {
		if h.Member != member {
			continue
		}
		if h.Denied {
			return "refuses until the window ends"
		}
		return fmt.Sprintf("%d left", h.Left)
	}
	return ""
}

// done describes what relieves k's owner, and since when k is hot.
func (k *topKey) done(now time.Time) string {
	var parts []string
	if n := len(k.Holders); n > 0 {
		parts = append(parts, "leased to "+fmt.Sprint(n))
	}
	if k.Route != nil {
		parts = append(parts, routeText(k.Route))
	}
	if len(parts) == 0 {
		parts = append(parts, "counted by its owner")
	}
	if k.Since != nil {
		parts = append(parts, fmt.Sprintf("hot for %v", now.Sub(*k.Since).Round(time.Second)))
	}
	return strings.Join(parts, "; ")
}

// unmatched returns the indexes of routes of keys that are neither hot nor leased.
func (f *frame) unmatched() (at []int) {
	shown := map[[2]string]bool{}
	for _, k := range f.Keys {
		shown[[2]string{k.Domain, k.OwnerString}] = true
	}
	for i, r := range f.Routes {
		if !shown[[2]string{r.Domain, r.OwnerString}] {
			at = append(at, i)
		}
	}
	return at
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// share returns n and its percentage of the limit.
func share(n uint64, limit uint32) string {
	if limit == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d (%.0f %%)", n, 100*float64(n)/float64(limit))
}

// limitText returns a limit with its window, as in 5000/s.
func limitText(limit uint32, window string) string {
	for long, short := range map[string]string{"1s": "s", "1m0s": "min", "1h0m0s": "h", "24h0m0s": "day"} {
		if window == long {
			window = short
		}
	}
	return fmt.Sprintf("%d/%s", limit, window)
}

// cut shortens a line to width runes. 0 means no limit.
func cut(line string, width int) string {
	text := strings.TrimSuffix(line, "\n")
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return line
	}
	r := []rune(text)
	return string(r[:max(0, width-1)]) + "…" + line[len(text):]
}
