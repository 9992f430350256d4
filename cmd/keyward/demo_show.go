package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/keyward/keyward/lab"
	"github.com/keyward/keyward/ring"
)

// showDemo sends traffic and draws the table twice a second on a terminal, every five seconds elsewhere.
func showDemo(ctx context.Context, out io.Writer, l *lab.Lab, envoy *lab.Envoy, length time.Duration) error {
	keys := demoKeys()
	if err := nextSecond(ctx); err != nil {
		return err
	}
	start := time.Now()
	sending, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		send(sending, envoy.Listener, keys)
	}()
	every, redraw := 5*time.Second, false
	if f, ok := out.(*os.File); ok && isTerminal(f) {
		every, redraw = 500*time.Millisecond, true
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	lines := 0
	draw := func() {
		var b bytes.Buffer
		drawTable(&b, l, keys, start, length)
		if redraw && lines > 0 {
			fmt.Fprintf(out, "\x1b[%dA\x1b[J", lines)
		}
		lines = bytes.Count(b.Bytes(), []byte("\n"))
		_, _ = out.Write(b.Bytes())
	}
	for {
		select {
		case <-tick.C:
			draw()
		case <-done:
			draw()
			return verdict(out, l, keys, start)
		}
	}
}

// nextSecond waits for a window to begin, so that the first one counts in full.
func nextSecond(ctx context.Context) error {
	now := time.Now()
	t := time.NewTimer(now.Truncate(time.Second).Add(time.Second).Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// windows is how many one-second windows the traffic has touched, the most that could each admit a full limit.
func windows(start, now time.Time) int64 { return now.Unix() - start.Unix() + 1 }

func drawTable(out io.Writer, l *lab.Lab, keys []*demoKey, start time.Time, length time.Duration) {
	now := time.Now()
	var members []ring.Member
	for _, s := range l.Sidecars {
		members = append(members, ring.Member{ID: ring.ID(s.Name)})
	}
	r := ring.New(members)
	fmt.Fprintf(out, "\n  %-14s %-11s %8s %8s %9s %9s  %s\n", "API KEY", "COUNTED BY", "LIMIT/s", "SENT/s", "ALLOWED", "DENIED", "allowed against the most that the limit admits")
	for _, k := range keys {
		most := windows(start, now) * int64(k.limit)
		allowed := k.allowed.Load()
		fmt.Fprintf(out, "  %-14s %-11s %8d %8d %9d %9d  %s\n", k.name, r.At(r.Owner(ring.Hash(k.name))).ID, k.limit, k.rate, allowed, k.denied.Load(), bar(allowed, most))
	}
	direct, misrouted := directHits(l)
	fmt.Fprintf(out, "\n  %2.0f of %.0f s   questions Envoy sent straight to the key's owner: %s\n",
		min(now.Sub(start), length).Seconds(), length.Seconds(), ratio(direct, misrouted))
}

func bar(part, whole int64) string {
	const width = 40
	n := int(min(width, part*width/max(1, whole)))
	return strings.Repeat("█", n) + strings.Repeat("░", width-n)
}

func ratio(direct, misrouted float64) string {
	if direct+misrouted == 0 {
		return "none yet"
	}
	return fmt.Sprintf("%.0f of %.0f (%.1f %%)", direct, direct+misrouted, 100*direct/(direct+misrouted))
}

// directHits adds up the members' counters of questions that came with a key.
func directHits(l *lab.Lab) (direct, misrouted float64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, s := range l.Sidecars {
		body, err := lab.Get(ctx, "http://"+s.Metrics+"/metrics")
		if err != nil {
			continue
		}
		p := expfmt.NewTextParser(model.UTF8Validation)
		families, err := p.TextToMetricFamilies(bytes.NewReader(body))
		if err != nil {
			continue
		}
		for _, m := range families["keyward_direct_total"].GetMetric() {
			direct += m.GetCounter().GetValue()
		}
		for _, m := range families["keyward_misrouted_total"].GetMetric() {
			misrouted += m.GetCounter().GetValue()
		}
	}
	return direct, misrouted
}

// verdict says in words what the figures mean; a failed check is an error.
func verdict(out io.Writer, l *lab.Lab, keys []*demoKey, start time.Time) error {
	var allowed, denied, failed, over int64
	end := time.Now()
	for _, k := range keys {
		allowed += k.allowed.Load()
		denied += k.denied.Load()
		failed += k.failed.Load()
		over += max(0, k.allowed.Load()-windows(start, end)*int64(k.limit))
	}
	direct, misrouted := directHits(l)
	fmt.Fprintf(out, `
  %d requests allowed, %d denied, %d failed. Above any limit: %d.
  Straight to the owner: %s. The others would have been forwarded once; none is ever guessed.
`, allowed, denied, failed, over, ratio(direct, misrouted))
	if over > 0 || failed > 0 {
		return fmt.Errorf("the demo went wrong: %d requests failed, %d were admitted above their limit", failed, over)
	}
	return nil
}
