package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/admin"
)

// socketFlag adds --admin.
func socketFlag(f *pflag.FlagSet) *string {
	socket := "unix:/run/keyward/admin.sock"
	if s := os.Getenv("KEYWARD_ADMIN"); s != "" {
		socket = s
	}
	return f.String("admin", socket, "the sidecar's admin `socket`, also KEYWARD_ADMIN")
}

// overSocket asks the sidecar behind an admin socket; the path begins with /. The answer to anything but 200 is an error.
func overSocket(ctx context.Context, socket, method, path string, body any) (*http.Response, error) {
	file, err := admin.SocketPath(socket)
	if err != nil {
		return nil, fmt.Errorf("--admin %q: %w", socket, err)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", file)
		},
	}}
	var text []byte
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://sidecar"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the sidecar: %w", err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	why, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	return nil, fmt.Errorf("the sidecar answers %s: %s", res.Status, printable(strings.ReplaceAll(strings.TrimSpace(string(why)), "\n", "; ")))
}

// printable is s as a terminal may show it: keys come from callers, who must not write to an operator's screen.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}
