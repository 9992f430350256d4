package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
		Short:   "Say by hand what is done about a hot key: split, pin, cap, never, clear; or list what is done",
		Long:    helpText("hot"),
		Example: helpExamples("hot"),
	}
	socket := socketFlag(cmd.PersistentFlags())
	cmd.AddCommand(
		newHotList(socket),
		newHotOrder(socket, hotkey.Spread, "split", "Spread the key's requests over sub-keys on several members"),
		newHotOrder(socket, hotkey.Dedicated, "pin", "Send all of the key's requests to the least loaded member"),
		newHotOrder(socket, hotkey.Cap, "cap", "Have Envoy refuse locally what is certainly over the key's limit"),
		newHotOrder(socket, hotkey.Never, "never", "Do nothing about the key, however hot it is"),
		newHotOrder(socket, hotkey.Auto, "clear", "Take back what was said by hand"),
	)
	return cmd
}

func newHotOrder(socket *string, mode hotkey.Mode, name, short string) *cobra.Command {
	said := api.HotMode(mode)
	o := api.HotOrder{Mode: &said}
	cmd := &cobra.Command{
		Use:     name + " DOMAIN KEY=VALUE...",
		Short:   short,
		Long:    short + ".\n\nKEY=VALUE is each entry of the descriptor, in its order; in its place --owner-string names the key.",
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
		return suggestExplain(giveOrder(cmd.Context(), cmd.OutOrStdout(), *socket, *output, &o), o.Domain, entries)
	}
	cmd.Flags().StringVar(&o.OwnerString, "owner-string", "", "the key's x-keyward-key")
	if mode == hotkey.Spread {
		cmd.Flags().IntVar(&o.Members, "members", 0, "sub-keys, each on a member of its own, 2 to 16 (default as the rule says)")
	}
	return cmd
}

func giveOrder(ctx context.Context, out io.Writer, socket, output string, o *api.HotOrder) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	res, err := overSocket(ctx, socket, http.MethodPost, "/hot", o)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var r api.HotRoute
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		return fmt.Errorf("read the sidecar's answer: %w", err)
	}
	return show(out, output, r, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "%s: %s; %s announces it\n", keyName(r.Domain, r.Name, r.OwnerString), routeText(&r), printable(r.By))
		return err
	})
}

// keyName is a key for people: its domain and descriptor, or what else is known of it.
func keyName(domain, name, ownerString string) string {
	if name == "" {
		name = ownerString
	}
	if name == "" {
		return "(name not known yet)"
	}
	return printable(domain) + " " + printable(name)
}

// routeText is what is done about a key.
func routeText(r *api.HotRoute) string {
	var to []string
	for _, s := range r.SubKeys {
		to = append(to, printable(s.Member))
	}
	text := r.Mode.String()
	switch hotkey.Mode(r.Mode) {
	case hotkey.Auto:
		return "as measured"
	case hotkey.Cap:
		text = "capped by Envoy"
	case hotkey.Dedicated:
		text = "pinned to " + strings.Join(to, " ")
	case hotkey.Spread:
		text = "split over " + strings.Join(to, " ")
	case hotkey.Never:
		text = "left alone"
	}
	if r.Manual {
		text += ", by hand"
	}
	return text
}

func newHotList(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List what is done about hot keys anywhere, and the hot keys that this sidecar counts",
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	res, err := overSocket(ctx, socket, http.MethodGet, "/v1/hotkeys", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var h api.HotKeys
	if err := json.NewDecoder(res.Body).Decode(&h); err != nil {
		return fmt.Errorf("read the sidecar's answer: %w", err)
	}
	return show(out, output, h, func(out io.Writer) error { return printHot(out, &h) })
}

func printHot(out io.Writer, h *api.HotKeys) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(h.Routes) == 0 {
		fmt.Fprintln(t, "Nothing is done about any key.")
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
	}
	if hot == 0 {
		fmt.Fprintf(t, "\nNo key that %s counts is hot.\n", printable(h.Member))
	}
	return t.Flush()
}
