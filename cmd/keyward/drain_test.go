package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
)

// sidecar answers on an admin socket.
func sidecar(t *testing.T, progress ...api.DrainStatus) (socket string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := admin.ListenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	never := make(chan struct{})
	srv := http.Server{Handler: admin.SocketHandler(admin.SocketOptions{
		Drain: func() <-chan struct{} { return never },
		Progress: func() api.DrainStatus { // of one request only
			p := progress[0]
			if len(progress) > 1 {
				progress = progress[1:]
			}
			return p
		},
		Every: time.Millisecond,
	}), ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return "unix:" + path
}

func TestDrain(t *testing.T) {
	leaving := api.DrainStatus{State: "leaving", HandedOver: 3, Incomplete: 2, Seconds: 0.5}
	var out strings.Builder
	socket := sidecar(t, leaving, api.DrainStatus{Done: true, Complete: true, HandedOver: 7, Seconds: 0.7})
	if err := drain(t.Context(), &out, socket); err != nil {
		t.Error(err)
	}
	if got := out.String(); !strings.Contains(got, "leaving, 3 counters sent, 2 members incomplete") || !strings.Contains(got, "drained in 0.7 s, 7 counters") {
		t.Errorf("prints %q", got)
	}
	if err := drain(t.Context(), &out, sidecar(t, api.DrainStatus{Done: true})); err == nil || !strings.Contains(err.Error(), "drain incomplete") {
		t.Errorf("not handed over: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := drain(ctx, onWrite(cancel), sidecar(t, leaving)); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("too slow: %v", err)
	}
	for _, bad := range []string{"/no/prefix", "unix:" + filepath.Join(t.TempDir(), "absent")} {
		if err := drain(t.Context(), &out, bad); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// TestDrainEnvoy requires that Envoy drains before the counters are sent, and that an Envoy that does not answer does
// not keep them back.
func TestDrainEnvoy(t *testing.T) {
	var asked []string
	envoy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String())
	}))
	defer envoy.Close()
	for _, address := range []string{strings.TrimPrefix(envoy.URL, "http://"), "127.0.0.1:1"} {
		socket := sidecar(t, api.DrainStatus{Done: true, Complete: true})
		root := newRoot()
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs([]string{"drain", "--admin", socket, "--envoy", address})
		if err := root.Execute(); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	if len(asked) != 1 || asked[0] != "POST /drain_listeners?graceful&skip_exit" {
		t.Errorf("Envoy was asked %q", asked)
	}
}

// onWrite is a writer that calls a function whenever it is written to.
type onWrite func()

func (f onWrite) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}
