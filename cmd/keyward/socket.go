package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// socketFlag adds --admin.
func socketFlag(f *pflag.FlagSet) *string {
	socket := "unix:/run/keyward/admin.sock"
	if s := os.Getenv("KEYWARD_ADMIN"); s != "" {
		socket = s
	}
	return f.String("admin", socket, "the sidecar's admin `socket`, also KEYWARD_ADMIN")
}

// overSocket sends a request, such as "GET /status", to the sidecar behind an
// admin socket. Any status but 200 is an error.
func overSocket(ctx context.Context, socket, request string, body any) (*http.Response, error) {
	method, path, _ := strings.Cut(request, " ")
	file, err := api.SocketPath(socket)
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
		return nil, socketError(file, err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	why, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	return nil, fmt.Errorf("the sidecar answers %s: %s", res.Status, printable(strings.ReplaceAll(strings.TrimSpace(string(why)), "\n", "; ")))
}

// socketError returns an error with the socket, the system's error and advice.
func socketError(file string, err error) error {
	var sys *os.SyscallError
	if !errors.As(err, &sys) {
		return fmt.Errorf("ask the sidecar at unix:%s: %w", file, err)
	}
	advice := "set --admin or KEYWARD_ADMIN to the sidecar's --admin socket"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		advice = "run this command next to the sidecar, and " + advice
	case errors.Is(err, syscall.ECONNREFUSED):
		advice = "no sidecar listens on it: " + advice
	case errors.Is(err, fs.ErrPermission):
		advice = "run this command as the sidecar's user, or " + advice
	}
	return fmt.Errorf("ask the sidecar at unix:%s: %w: %s", file, sys.Err, advice)
}

// suggestExplain adds the command that shows why no rule limits a descriptor, if that is the error.
func suggestExplain(err error, domain string, entries []config.Entry) error {
	if err == nil || len(entries) == 0 || !strings.Contains(err.Error(), api.ErrNoCounter.Error()) {
		return err
	}
	words := []string{shellWord(domain)}
	for _, e := range entries {
		words = append(words, shellWord(e.Key+"="+e.Value))
	}
	return fmt.Errorf("%w: `keyward explain %s` shows why", err, strings.Join(words, " "))
}

// shellWord quotes s as one word for a shell, without control characters.
func shellWord(s string) string {
	safe := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-./:=@%+,", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !safe(r) }) {
		return s
	}
	if p := printable(s); p != s {
		return p
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// printable quotes s if it has control characters: keys come from callers, who must not control an operator's terminal.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}
