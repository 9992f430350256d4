package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/keyward/keyward/internal/api"
)

// budgetOptions are the flags of `keyward budgets`.
type budgetOptions struct {
	pages  []string
	watch  bool
	output string
	every  time.Duration
}

func newBudgets() *cobra.Command {
	var o budgetOptions
	cmd := &cobra.Command{
		Use:     "budgets",
		Short:   "List what is spent, held and left of the keys with holds",
		Long:    helpText("budgets"),
		Example: helpExamples("budgets"),
		Args:    cobra.NoArgs,
	}
	members, output := memberFlag(cmd), outputFlag(cmd)
	f := cmd.Flags()
	asJSON := f.Bool("json", false, "the same as --output json")
	f.BoolVarP(&o.watch, "watch", "w", false, "update until q or Ctrl-C is pressed")
	f.DurationVar(&o.every, "every", time.Second, "time between updates of --watch")
	cmd.MarkFlagsMutuallyExclusive("json", "output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if o.pages, err = memberURLs(*members); err != nil {
			return err
		}
		if o.output = *output; *asJSON {
			o.output = "json"
		}
		return runBudgets(ctx, cmd.OutOrStdout(), &o)
	}
	return cmd
}

func runBudgets(ctx context.Context, out io.Writer, o *budgetOptions) error {
	if o.every <= 0 {
		return fmt.Errorf("--every %v: want more than 0", o.every)
	}
	screen, ok := out.(*os.File)
	if !ok || !o.watch || o.output == "json" || !term.IsTerminal(int(screen.Fd())) {
		return printBudgets(ctx, out, o)
	}
	f := lookBudgets(ctx, o.pages)
	return watchScreen(ctx, screen, o.every, watched{
		draw: func(out io.Writer, to size) { f.draw(out, to) }, refresh: func() { f = lookBudgets(ctx, o.pages) }, press: func(byte) {},
	})
}

// printBudgets prints the budgets once, or again and again with --watch.
func printBudgets(ctx context.Context, out io.Writer, o *budgetOptions) error {
	return printEvery(ctx, o.every, !o.watch, func() error {
		f := lookBudgets(ctx, o.pages)
		switch {
		case hasEnded(ctx):
		case !o.watch && len(f.Members) == 0:
			return fmt.Errorf("no member answers:\n%s", printableLines(f.Silent))
		case o.output == "json":
			return json.NewEncoder(out).Encode(f)
		default:
			f.draw(out, size{})
		}
		return nil
	})
}

// budgetFrame is one state of `keyward budgets`.
type budgetFrame struct {
	Time    time.Time   `json:"time"`
	Members []string    `json:"members"`          // that answered
	Silent  []string    `json:"silent,omitempty"` // members that did not, and why
	Keys    []budgetKey `json:"keys"`             // those first of whose limits the largest part is used
	Total   int         `json:"total"`            // keys with holds; each member lists at most 200 of its own
}

// budgetKey is a key with its owner.
type budgetKey struct {
	Owner string `json:"owner"`
	api.BudgetStatus
}

// used returns the part of the limit that is used, 0 to 1 or more.
func (k *budgetKey) used() float64 { return float64(k.Spent+k.Held) / float64(max(1, k.Limit)) }

// lookBudgets asks all members for the keys with holds that they own.
func lookBudgets(ctx context.Context, pages []string) *budgetFrame {
	return newBudgetFrame(time.Now(), askMembers(ctx, pages, (*said).askBudgets))
}

func (a *said) askBudgets(ctx context.Context) {
	if a.cluster, a.err = get[api.ClusterStatus](ctx, a.page+"/cluster"); a.err == nil {
		a.budgets, a.err = get[api.Budgets](ctx, a.page+"/v1/budgets")
	}
}

// newBudgetFrame combines the answers. A key has the name that any member knows.
func newBudgetFrame(now time.Time, answers []said) *budgetFrame {
	f := &budgetFrame{Time: now, Members: []string{}, Keys: []budgetKey{}}
	names := map[string]api.BudgetName{}
	for _, a := range answers {
		if a.err != nil || slices.Contains(f.Members, a.budgets.Member) {
			continue
		}
		f.Members = append(f.Members, a.budgets.Member)
		f.Total += a.budgets.Total
		for d, name := range a.budgets.Names {
			names[d] = name
		}
		for _, k := range a.budgets.Keys {
			f.Keys = append(f.Keys, budgetKey{a.budgets.Member, k})
		}
	}
	for i := range f.Keys {
		if k := &f.Keys[i]; k.Name == "" {
			k.Domain, k.Name = names[k.Digest].Domain, names[k.Digest].Name
		}
	}
	f.Silent = silences(answers)
	slices.Sort(f.Members)
	slices.SortFunc(f.Keys, func(a, b budgetKey) int {
		return cmp.Or(cmp.Compare(b.used(), a.used()), cmp.Compare(a.Digest, b.Digest), cmp.Compare(a.Owner, b.Owner))
	})
	return f
}

// draw writes f within the size.
func (f *budgetFrame) draw(out io.Writer, to size) {
	var b bytes.Buffer
	open := 0
	for i := range f.Keys {
		open += int(f.Keys[i].Open)
	}
	fmt.Fprintf(&b, "keyward budgets  %s  %s, %s with holds, %s\n", f.Time.Format(time.TimeOnly),
		count(len(f.Members), "member"), count(f.Total, "key"), count(open, "open hold"))
	for _, s := range f.Silent {
		fmt.Fprintf(&b, "not shown: %s\n", printable(s))
	}
	if len(f.Keys) == 0 {
		b.WriteString("\nNo key has holds.\n")
	} else {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\nKEY\tOWNER\tLIMIT\tSPENT\tHELD\tLEFT\tOPEN\tOLDEST\tRESETS IN")
		for i := range f.Keys {
			f.Keys[i].draw(t, f.Time)
		}
		_ = t.Flush() // to memory
	}
	if more := f.Total - len(f.Keys); more > 0 {
		fmt.Fprintf(&b, "%s not shown: each member lists 200.\n", count(more, "more key"))
	}
	writeLines(out, b.String(), to)
}

func (k *budgetKey) draw(t io.Writer, now time.Time) {
	name, limit, reset := strings.TrimSpace(keyName(k.Domain, k.Name, k.Digest)), limitText(k.Limit, k.Window), time.Duration(k.Reset*float64(time.Second)).Round(time.Second).String()
	if k.Algorithm == "in_flight" {
		limit, reset = fmt.Sprintf("%d in flight", k.Limit), "-"
	}
	oldest := "-"
	if k.Oldest != nil {
		oldest = now.Sub(*k.Oldest).Round(time.Second).String()
	}
	fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", name, printable(k.Owner), limit, share(k.Spent, k.Limit),
		share(k.Held, k.Limit), share(k.Left, k.Limit), k.Open, oldest, reset)
}
