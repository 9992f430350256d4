package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/api"
)

// tapOptions are the flags of `keyward tap`.
type tapOptions struct {
	socket *string
	domain string
	key    string
	over   bool
	rate   float64
	n      int
	output string
}

func newTap() *cobra.Command {
	var o tapOptions
	cmd := &cobra.Command{
		Use:     "tap",
		Short:   "Watch decisions of this pod's sidecar",
		Long:    helpText("tap"),
		Example: helpExamples("tap"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return runTap(ctx, cmd.OutOrStdout(), &o)
		},
	}
	f := cmd.Flags()
	o.socket = socketFlag(f)
	f.StringVar(&o.domain, "domain", "", "`domain` of the decisions")
	f.StringVar(&o.key, "key", "", "`text` that the descriptor contains, as it is printed: k=v,k2=v2")
	f.BoolVar(&o.over, "over", false, "only decisions over the limit")
	f.Float64Var(&o.rate, "rate", 10, "largest number of decisions per second, up to 1000")
	f.IntVarP(&o.n, "number", "n", 0, "number of decisions to print; 0: until Ctrl-C")
	f.StringVarP(&o.output, "output", "o", "text", "text or json, one decision per line")
	return cmd
}

func runTap(ctx context.Context, out io.Writer, o *tapOptions) error {
	show := printDecision
	switch o.output {
	case "text":
	case "json":
		lines := json.NewEncoder(out)
		show = func(_ io.Writer, d *api.TapDecision) { _ = lines.Encode(d) }
	default:
		return fmt.Errorf("--output %q: want text or json", o.output)
	}
	q := url.Values{"domain": {o.domain}, "key": {o.key}, "over": {strconv.FormatBool(o.over)}, "rate": {fmt.Sprint(o.rate)}, "n": {strconv.Itoa(o.n)}}
	res, err := overSocket(ctx, *o.socket, "GET /v1/tap?"+q.Encode(), nil)
	if err != nil {
		if ctx.Err() != nil { // Ctrl-C
			err = nil
		}
		return err
	}
	defer res.Body.Close()
	for lines := json.NewDecoder(res.Body); ; {
		var d api.TapDecision
		switch err := lines.Decode(&d); {
		case err == nil:
			show(out, &d)
		case errors.Is(err, io.EOF) || ctx.Err() != nil:
			return nil
		default:
			return fmt.Errorf("the sidecar stopped: %w", err)
		}
	}
}

func printDecision(out io.Writer, d *api.TapDecision) {
	code := "ok  "
	if d.Code != "OK" {
		code = "OVER"
	}
	fmt.Fprintf(out, "%s %s %s %s hits=%d", d.Time.Local().Format("15:04:05.000"), code, printable(d.Domain), printable(d.Descriptor), d.Hits)
	if d.Limit == nil {
		fmt.Fprintln(out, " no limit")
		return
	}
	fmt.Fprintf(out, " left=%d/%d %s", *d.Remaining, *d.Limit, d.Path)
	if d.Path != "local" || d.Owner != d.Member {
		fmt.Fprintf(out, " owner=%s", printable(d.Owner))
	}
	if d.Authority != "full" {
		fmt.Fprintf(out, " authority=%s", d.Authority)
	}
	fmt.Fprintln(out)
}
