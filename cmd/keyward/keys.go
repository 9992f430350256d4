package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

func newKeys() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Print or reset the count of a key",
	}
	cmd.AddCommand(newKeysGet(), newKeysReset())
	return cmd
}

func newKeysGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get DOMAIN KEY=VALUE...",
		Short:   "Print the count of a key at its owner",
		Long:    helpText("keys-get"),
		Example: helpExamples("keys-get"),
		Args:    cobra.MinimumNArgs(2),
	}
	members, output := memberFlag(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		entries, err := parseEntries(args[1:])
		if err != nil {
			return err
		}
		c, err := askFirst[api.CounterStatus](cmd.Context(), *members, "/v1/counters?"+descriptorQuery(args[0], entries))
		if err != nil {
			return suggestExplain(err, args[0], entries)
		}
		return show(cmd.OutOrStdout(), *output, c, func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "%d of %d counted, %d left, resets in %.0f s; owner %s, authority %s%s\n",
				c.Count, c.Limit, c.Remaining, c.Reset, printable(c.Owner), c.Authority, lentText(&c))
			return err
		})
	}
	return cmd
}

func newKeysReset() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "reset DOMAIN KEY=VALUE...",
		Short:   "Refund the hits of a key, so that its caller has the full limit again",
		Long:    helpText("keys-reset"),
		Example: helpExamples("keys-reset"),
		Args:    cobra.MinimumNArgs(2),
	}
	socket, output := socketFlag(cmd.Flags()), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		entries, err := parseEntries(args[1:])
		if err != nil {
			return err
		}
		r, err := resetKey(cmd.Context(), *socket, args[0], entries)
		if err != nil {
			return suggestExplain(err, args[0], entries)
		}
		return show(cmd.OutOrStdout(), *output, r, func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "%d hits refunded at %s; %d remain\n", r.Before-min(r.Before, r.After), printable(r.Owner), r.After)
			return err
		})
	}
	return cmd
}

// descriptorOf returns a descriptor in JSON.
func descriptorOf(entries []config.Entry) *api.KeyDescriptor {
	d := new(api.KeyDescriptor)
	for _, e := range entries {
		d.Entries = append(d.Entries, api.KeyValue(e))
	}
	return d
}

func resetKey(ctx context.Context, socket, domain string, entries []config.Entry) (r api.ResetResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	o := api.ResetOrder{Domain: domain, Descriptor: *descriptorOf(entries)}
	res, err := overSocket(ctx, socket, "POST /reset", o)
	if err != nil {
		return r, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		return r, fmt.Errorf("decode the sidecar's answer: %w", err)
	}
	return r, nil
}
