package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/api"
)

func newHot() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "hot",
		Short:   "Set or list the routes of hot keys: split, pin, cap, quota, never, clear",
		Long:    helpText("hot"),
		Example: helpExamples("hot"),
	}
	socket := socketFlag(cmd.PersistentFlags())
	cmd.AddCommand(
		newHotList(socket),
		newHotOrder(socket, hotkey.Spread, "split", "Spread the key's requests over sub-keys on several members"),
		newHotOrder(socket, hotkey.Dedicated, "pin", "Send all of the key's requests to the least loaded member"),
		newHotOrder(socket, hotkey.Cap, "cap", "Make Envoy deny locally what is certainly over the key's limit"),
		newHotQuota(socket),
		newHotOrder(socket, hotkey.Never, "never", "Leave the key with its owner, however hot it is"),
		newHotOrder(socket, hotkey.Auto, "clear", "Return the key to automatic relief"),
	)
	return cmd
}

func newHotOrder(socket *string, mode hotkey.Mode, name, short string) *cobra.Command {
	said := api.HotMode(mode)
	o := api.HotOrder{Mode: &said}
	cmd := &cobra.Command{
		Use:     name + " DOMAIN KEY=VALUE...",
		Short:   short,
		Long:    short + ".\n\nKEY=VALUE are the entries of the descriptor, in order. Alternatively, --owner-string names the key.",
		Example: "  keyward hot " + name + " edge api_key=alice",
		Args:    cobra.MinimumNArgs(1),
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		entries, err := parseEntries(args[1:])
		if err != nil {
			return err
		}
		o.Domain, o.Descriptor = args[0], nil
		if len(entries) > 0 {
			o.Descriptor = descriptorOf(entries)
		}
		if err := o.Validate(); err != nil {
			return err
		}
		return suggestExplain(order(cmd, *socket, *output, &o), o.Domain, entries)
	}
	cmd.Flags().StringVar(&o.OwnerString, "owner-string", "", "the key's x-keyward-key `header`")
	if mode == hotkey.Spread {
		cmd.Flags().IntVar(&o.Members, "members", 0, "`number` of sub-keys, each on its own member, 2 to 16 (default: from the rule)")
	}
	return cmd
}

// newHotQuota returns the command that switches a key to the quota, or without a key lists those that are switched.
func newHotQuota(socket *string) *cobra.Command {
	const short = "Make Envoy spend the key's limit without calls; without a key, list the keys for which it does"
	cmd := newHotOrder(socket, hotkey.Quota, "quota", short)
	give := cmd.RunE
	cmd.Use, cmd.Args = "quota [DOMAIN KEY=VALUE]", cobra.ArbitraryArgs
	cmd.Long = short + ".\n\nThe key's rule must have hot_step: quota. A route switches when the Envoy has an assignment: see docs/no-call.md."
	cmd.Example = helpExamples("hot-quota")
	_ = cmd.Flags().MarkHidden("owner-string") // only a descriptor names the rule
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return give(cmd, args)
		}
		return askHot(cmd.Context(), cmd.OutOrStdout(), *socket, cmd.Flag("output").Value.String(), printHotQuota)
	}
	return cmd
}

// printHotQuota lists the keys whose limit Envoys spend, and the hot keys whose rules allow that.
func printHotQuota(out io.Writer, h *api.HotKeys) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "KEY\tAT THE ENVOY OF %s\tANNOUNCED BY\tSINCE\n", printable(h.Member))
	routed := map[string]bool{}
	for _, r := range h.Routes {
		if hotkey.Mode(r.Mode) != hotkey.Quota {
			continue
		}
		name := keyName(r.Domain, r.Name, r.OwnerString)
		routed[name] = true
		by := printable(r.By)
		if r.Manual {
			by += ", manual"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, orDefault(r.Quota, "not primed here"), by, r.Since.Local().Format(time.DateTime))
	}
	for _, k := range h.Keys {
		name := keyName(k.Domain, k.Name, k.OwnerString)
		for _, r := range k.Relief {
			if r.Kind == "quota" && k.Hot && !routed[name] {
				fmt.Fprintf(t, "%s\t%s\t-\t-\n", name, orDefault(printable(r.Why), "will switch"))
			}
		}
	}
	return t.Flush()
}

func orDefault(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// order sends an order to the sidecar and prints the route that it announces.
func order(cmd *cobra.Command, socket, output string, o *api.HotOrder) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
	defer cancel()
	res, err := overSocket(ctx, socket, "POST /hot", o)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var r api.HotRoute
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		return fmt.Errorf("decode the sidecar's answer: %w", err)
	}
	return show(cmd.OutOrStdout(), output, r, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "%s: %s; %s announces it\n", keyName(r.Domain, r.Name, r.OwnerString), routeText(&r), printable(r.By))
		return err
	})
}

// keyName returns a key's domain and descriptor, or its owner string if the descriptor is unknown.
func keyName(domain, name, ownerString string) string {
	if name == "" {
		name = ownerString
	}
	if name == "" {
		return "(name not known yet)"
	}
	return printable(domain) + " " + printable(name)
}

// routeText describes a route.
func routeText(r *api.HotRoute) string {
	var to []string
	for _, s := range r.SubKeys {
		to = append(to, printable(s.Member))
	}
	text := r.Mode.String()
	switch hotkey.Mode(r.Mode) {
	case hotkey.Auto:
		return "automatic"
	case hotkey.Cap:
		text = "capped by Envoy"
	case hotkey.Dedicated:
		text = "pinned to " + strings.Join(to, " ")
	case hotkey.Spread:
		text = "split over " + strings.Join(to, " ")
	case hotkey.Never:
		text = "left alone"
	case hotkey.Quota:
		if text = "spent by Envoy without calls"; r.Quota == api.QuotaPriming {
			text += " when it has an assignment"
		}
	}
	if r.Manual {
		text += ", manual"
	}
	return text
}

func newHotList(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the routes of all hot keys, and the hot keys of this sidecar",
		Example: helpExamples("hot-list"),
		Args:    cobra.NoArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return listHot(cmd.Context(), cmd.OutOrStdout(), *socket, *output)
	}
	return cmd
}

func listHot(ctx context.Context, out io.Writer, socket, output string) error {
	return askHot(ctx, out, socket, output, printHot)
}

// askHot prints what the sidecar answers about its hot keys.
func askHot(ctx context.Context, out io.Writer, socket, output string, text func(io.Writer, *api.HotKeys) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	res, err := overSocket(ctx, socket, "GET /v1/hotkeys", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var h api.HotKeys
	if err := json.NewDecoder(res.Body).Decode(&h); err != nil {
		return fmt.Errorf("decode the sidecar's answer: %w", err)
	}
	return show(out, output, h, func(out io.Writer) error { return text(out, &h) })
}

func printHot(out io.Writer, h *api.HotKeys) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(h.Routes) == 0 {
		fmt.Fprintln(t, "No key has a route.")
	} else {
		fmt.Fprintln(t, "KEY\tDONE\tANNOUNCED BY\tSINCE")
	}
	for _, r := range h.Routes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", keyName(r.Domain, r.Name, r.OwnerString), routeText(&r), printable(r.By), r.Since.Local().Format(time.DateTime))
	}
	hot := 0
	for _, k := range h.Keys {
		if !k.Hot {
			continue
		}
		if hot++; hot == 1 {
			fmt.Fprintf(t, "\nHOT AT %s\tRATE/s\tLIMIT\tUSED\n", printable(h.Member))
		}
		fmt.Fprintf(t, "%s\t%.0f\t%s\t%s\n", keyName(k.Domain, k.Name, k.OwnerString), k.Rate, limitText(k.Limit, k.Window), share(k.Used, k.Limit))
		for _, r := range k.Relief {
			fmt.Fprintf(t, "  %s\n", reliefText(h, &k, &r))
		}
	}
	if hot == 0 {
		fmt.Fprintf(t, "\nNo key that %s counts is hot.\n", printable(h.Member))
	}
	return t.Flush()
}

// reliefText describes a kind of relief of a key, with the Envoys of the member's own xDS server that have it.
func reliefText(h *api.HotKeys, k *api.HotKeyStatus, r *api.HotRelief) string {
	if r.Why != "" {
		return "no " + r.Kind + ": " + printable(r.Why)
	}
	n := 0
	for _, e := range h.Envoys {
		switch {
		case r.Kind == "split" && (e.Routes || e.Spreads),
			r.Kind == "cap" && (e.Routes && r.With == "" || slices.Contains(e.Caps, k.Domain)):
			n++
		}
	}
	needs := "--hot-filters or --hot-routes"
	if r.With != "" {
		needs = "--" + r.With
	}
	switch {
	case r.Kind == "quota":
		return "quota: by Envoys of --shape rlqs --hot-routes"
	case r.Kind == "lease":
		return "lease: by members other than its owner that get its requests"
	case len(h.Envoys) == 0:
		return r.Kind + ": by Envoys with " + needs
	}
	return fmt.Sprintf("%s: by %d of %s here; the others need %s", r.Kind, n, count(len(h.Envoys), "Envoy"), needs)
}
