package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/config"
)

// DrainStatus is how far a member has come that is to leave.
type DrainStatus struct {
	Done       bool    `json:"done"`        // it has drained, or given up
	Complete   bool    `json:"complete"`    // it has drained
	State      string  `json:"state"`       // joining, active or leaving
	HandedOver uint64  `json:"handed_over"` // counters sent to others
	Incomplete int     `json:"incomplete"`  // members that do not have all that is theirs yet
	Seconds    float64 `json:"seconds"`     // since it was told to leave
}

// SidecarStatus is what the socket says of a member.
type SidecarStatus struct {
	Node     string        `json:"node"`
	Version  string        `json:"version"`
	Ready    bool          `json:"ready"`
	NotReady []string      `json:"not_ready,omitempty"` // the parts that are not
	Cluster  ClusterStatus `json:"cluster"`
	Drain    *DrainStatus  `json:"drain,omitempty"` // nil: it was not told to leave
}

// SocketOptions say what the admin socket does. Every func may be called concurrently.
type SocketOptions struct {
	Status func() SidecarStatus
	// Drain has the member leave the ring, once, and is done when it has, or has given up. The process goes on.
	Drain func() (done <-chan struct{})
	// Progress is how far that is.
	Progress func() DrainStatus
	// Every is the time between two lines of progress; default 500 ms.
	Every time.Duration
	// Tap shows decisions until stop is called; see may be called concurrently. nil serves no /v1/tap.
	Tap func(q TapQuery, see func(TapDecision)) (stop func())
	// Hot carries an order out and returns what is announced; ErrNoCounter when no rule limits what it is about. nil
	// takes no orders.
	Hot func(HotOrder) (HotRoute, error)
	// Reset gives a key's count back; ErrNoCounter when no rule limits it. nil resets nothing.
	Reset func(domain string, entries []config.Entry) (ResetResult, error)
	// HotKeys is as in Options.
	HotKeys func() HotKeys
}

// SocketHandler serves GET /status, /v1/hotkeys and /v1/tap, POST /hot, /reset and /drain. The last one's answer is one line
// of JSON after the other until the member has drained; whoever goes away before does not stop it.
func SocketHandler(o SocketOptions) http.Handler {
	if o.Every <= 0 {
		o.Every = 500 * time.Millisecond
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Status()) })
	if o.HotKeys != nil {
		mux.HandleFunc("GET /v1/hotkeys", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.HotKeys()) })
	}
	if o.Tap != nil {
		mux.HandleFunc("GET /v1/tap", tap(o.Tap))
	}
	if o.Hot != nil {
		mux.HandleFunc("POST /hot", hotOrder(o.Hot))
	}
	if o.Reset != nil {
		mux.HandleFunc("POST /reset", resetKey(o.Reset))
	}
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		done := o.Drain()
		again := time.NewTicker(o.Every)
		defer again.Stop()
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines, flush := json.NewEncoder(w), http.NewResponseController(w)
		for {
			p := o.Progress()
			if err := errors.Join(lines.Encode(p), flush.Flush()); err != nil || p.Done {
				return
			}
			select {
			case <-done:
			case <-again.C:
			case <-r.Context().Done():
				return
			}
		}
	})
	return mux
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // a client that went away is nobody's fault
}

// SocketPath is the path in unix:PATH.
func SocketPath(address string) (string, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok || path == "" {
		return "", errors.New("want unix:/path/of/the/socket")
	}
	return path, nil
}

// ListenSocket listens on a unix socket that only this user may write to. It takes the place of one whose process has
// ended, not of one that is served.
func ListenSocket(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: another process serves it", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("%s: there is something that is no socket", path)
	}
	// Nobody else may connect before the mode is set, so it is made in a folder of its own and moved from there.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".admin")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	made := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socket{UnixListener: l, path: path}, nil
}

// socket removes its file when it is closed.
type socket struct {
	*net.UnixListener
	path string
}

// Close stops listening.
func (s *socket) Close() error {
	return errors.Join(s.UnixListener.Close(), os.Remove(s.path))
}
