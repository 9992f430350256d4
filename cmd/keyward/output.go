package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// outputFlag adds -o/--output text|json to cmd.
func outputFlag(cmd *cobra.Command) *string {
	return outputFlagOf(cmd, "text", "json")
}

// outputFlagOf adds -o/--output with other formats; the first is the default.
func outputFlagOf(cmd *cobra.Command, formats ...string) *string {
	o := &oneOf{formats[0], formats}
	text := strings.Join(formats[:len(formats)-1], ", ") + " or " + formats[len(formats)-1]
	cmd.Flags().VarP(o, "output", "o", text)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return &o.value
}

// oneOf is the value of a flag that takes one of a few words.
type oneOf struct {
	value string
	of    []string
}

func (o *oneOf) String() string { return o.value }
func (o *oneOf) Type() string   { return "format" }
func (o *oneOf) Set(s string) error {
	if !slices.Contains(o.of, s) {
		return fmt.Errorf("want one of: %s", strings.Join(o.of, ", "))
	}
	o.value = s
	return nil
}

// show writes v as indented JSON when format is json, else calls text.
func show(w io.Writer, format string, v any, text func(w io.Writer) error) error {
	if format != "json" {
		return text(w)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// memberFlag adds --member, the addresses of members' admin endpoints.
func memberFlag(cmd *cobra.Command) *[]string {
	members := []string{"127.0.0.1:9090"}
	if s := os.Getenv("KEYWARD_MEMBERS"); s != "" {
		members = strings.Split(s, ",")
	}
	list := cmd.Flags().StringSlice("member", members, "`host:port` of a member's --metrics, or several, separated by commas; also KEYWARD_MEMBERS")
	_ = cmd.Flags().SetAnnotation("member", pageFlag, nil) // the flag exists
	return list
}

// pageFlag marks the --member flags that take pages.
const pageFlag = "page"

// nameMembersAlike adds --members and --addr as aliases of --member to every command that takes pages, unless the
// command has flags with these names.
func nameMembersAlike(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		nameMembersAlike(sub)
	}
	f := cmd.Flags().Lookup("member")
	if f == nil {
		return
	}
	if _, pages := f.Annotations[pageFlag]; !pages {
		return
	}
	alike := map[string]bool{"members": cmd.Flags().Lookup("members") == nil, "addr": cmd.Flags().Lookup("addr") == nil}
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if alike[name] {
			name = "member"
		}
		return pflag.NormalizedName(name)
	})
}

// memberURLs returns the members' pages as URLs without a path. It accepts host:port and URLs.
func memberURLs(members []string) ([]string, error) {
	var urls []string
	var faults []error
	for _, m := range members {
		m = strings.TrimRight(strings.TrimSpace(m), "/")
		if strings.Contains(m, "://") {
			urls = append(urls, m)
			continue
		}
		if _, port, err := net.SplitHostPort(m); err != nil || port == "" {
			faults = append(faults, fmt.Errorf("--member %q: want host:port, as in 10.0.0.7:9090", m))
			continue
		}
		urls = append(urls, "http://"+m)
	}
	if len(urls) == 0 && len(faults) == 0 {
		faults = append(faults, errors.New("--member: want the host:port of at least one member"))
	}
	return urls, errors.Join(faults...)
}

// getBound is the time for one answer.
const getBound = 5 * time.Second

// errNotServed is the error for a page that a process does not serve.
var errNotServed = errors.New("not served there")

// get fetches a JSON document. Its errors contain the page and the answer.
func get[T any](ctx context.Context, page string) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, getBound)
	defer cancel()
	body, err := getBytes(ctx, page)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("read %s: %w", page, err)
	}
	return v, nil
}

// getBytes fetches a page. Any status but 200 is an error.
func getBytes(ctx context.Context, page string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		var where *url.Error
		if errors.As(err, &where) {
			err = where.Err // the message below has the address
		}
		return nil, fmt.Errorf("ask %s: %w", page, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", page, err)
	}
	why := strings.TrimSpace(string(body))
	switch {
	case res.StatusCode == http.StatusOK:
		return body, nil
	case res.StatusCode == http.StatusNotFound && why == "404 page not found": // the mux of net/http
		err = errNotServed
	case why == "":
		err = errors.New(res.Status)
	default:
		err = fmt.Errorf("%s: %s", res.Status, printable(cutText(strings.ReplaceAll(why, "\n", "; "), 300)))
	}
	return nil, fmt.Errorf("ask %s: %w", page, err)
}

// cutText returns at most n bytes of s.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}
