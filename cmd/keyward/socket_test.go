package main

import (
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// TestSocketAdvice holds what is said when a sidecar's socket cannot be reached, for every command that uses it.
func TestSocketAdvice(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(dir, "nowhere.sock")
	for socket, want := range map[string]string{
		nowhere: "ask the sidecar at unix:" + nowhere + ": no such file or directory: run this command next to the sidecar, and set --admin or KEYWARD_ADMIN to the sidecar's --admin socket",
		left:    "ask the sidecar at unix:" + left + ": connection refused: no sidecar listens on it: set --admin or KEYWARD_ADMIN to the sidecar's --admin socket",
	} {
		for _, args := range []string{"keys reset edge user=carol", "hot pin edge user=carol", "hot list", "tap", "drain"} {
			if _, err := run(t, append(strings.Fields(args), "--admin", "unix:"+socket)...); err == nil || err.Error() != want {
				t.Errorf("%s:\n got %v\nwant %s", args, err, want)
			}
		}
	}
}

// TestExplainIsSuggested holds that a descriptor which no rule limits leads to the command that says why.
func TestExplainIsSuggested(t *testing.T) {
	socket := serve(t, admin.SocketOptions{
		Reset: func(string, []config.Entry) (api.ResetResult, error) {
			return api.ResetResult{}, api.ErrNoCounter
		},
		Hot: func(api.HotOrder) (api.HotRoute, error) { return api.HotRoute{}, api.ErrNoCounter },
	})
	const want = "no rule limits this descriptor: `keyward explain edge user=carol 'path=/a b'` shows why"
	for _, args := range [][]string{
		{"keys", "reset", "edge", "user=carol", "path=/a b", "--admin", socket},
		{"hot", "pin", "edge", "user=carol", "path=/a b", "--admin", socket},
	} {
		if _, err := run(t, args...); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant ... %s", args, err, want)
		}
	}
	srv := httptest.NewServer(admin.Handler(admin.Options{
		Gatherer: prometheus.NewRegistry(), Cluster: func() api.ClusterStatus { return api.ClusterStatus{} }, Ready: func() error { return nil },
		Counters: func(string, []config.Entry) (api.CounterStatus, error) {
			return api.CounterStatus{}, api.ErrNoCounter
		},
	}))
	defer srv.Close()
	addr := strings.TrimPrefix(srv.URL, "http://")
	if _, err := run(t, "keys", "get", "edge", "user=carol", "path=/a b", "--member", addr); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Error(err)
	}
}
