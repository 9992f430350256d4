package admin

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/unixsocket"
)

// SocketOptions configures SocketHandler. All functions may be called concurrently. A nil function is not served.
type SocketOptions struct {
	Status func() api.SidecarStatus // required
	// Drain makes the member leave the ring and returns a channel that is closed when it has drained or given up. The
	// process continues. Further calls return the same channel. Required.
	Drain func() (done <-chan struct{})
	// Progress returns the progress of the drain. Required.
	Progress func() api.DrainStatus
	// Every is the time between two lines of progress. The default is 500 ms.
	Every time.Duration
	// Tap passes decisions to see until stop is called. It may call see concurrently.
	Tap func(q TapQuery, see func(api.TapDecision)) (stop func())
	// Hot executes an order and returns the route that is announced. It returns ErrNoCounter if no rule limits the key.
	Hot func(api.HotOrder) (api.HotRoute, error)
	// Reset refunds a key's hits. It returns ErrNoCounter if no rule limits the key.
	Reset func(domain string, entries []config.Entry) (api.ResetResult, error)
	// HotKeys is as in Options.
	HotKeys func() api.HotKeys
}

// SocketHandler serves GET /status, /v1/hotkeys and /v1/tap, and POST /hot, /reset and /drain. The answer to /drain
// is one line of JSON after the other until the member has drained. A client that disconnects does not stop the
// drain.
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
	_ = e.Encode(v) // the client has disconnected
}

// ListenSocket listens on a unix socket to which only this user may connect. It replaces a socket whose process has
// ended, and fails if another process serves it.
func ListenSocket(path string) (net.Listener, error) { return unixsocket.Listen("unix", path, 0o600) }
