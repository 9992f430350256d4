package app

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"time"

	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
)

// DefaultAdmin is the default of --admin.
const DefaultAdmin = "unix:/run/keyward/admin.sock"

// startSocket starts to serve the admin socket. If the default socket cannot be created, the member runs without one.
func (m *sidecar) startSocket() error {
	if m.Flags.Admin == "" {
		return nil
	}
	path, err := api.SocketPath(m.Flags.Admin)
	if err != nil {
		return err
	}
	l, err := admin.ListenSocket(path)
	if err != nil && m.Flags.Admin == DefaultAdmin {
		m.Log.Warn("no admin socket; `keyward drain`, `hot` and `tap` cannot reach this member", "error", err)
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--admin %s: the directory %s does not exist: create it, or choose another socket", m.Flags.Admin, filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("--admin %s: %w", m.Flags.Admin, err)
	}
	m.Log.Info("listening", "listener", "admin", "address", m.Flags.Admin)
	m.socket = &http.Server{
		Handler: admin.SocketHandler(admin.SocketOptions{
			Status: m.status, Drain: m.startDrain, Progress: m.drainProgress,
			Tap: m.tap, Hot: m.orderHot, Reset: m.reset, HotKeys: m.hotKeys,
		}),
		ReadHeaderTimeout: 5 * time.Second,
	}
	go func() {
		if err := m.socket.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			m.Log.Error("listener failed", "listener", "admin", "error", err)
		}
	}()
	return nil
}

func (m *sidecar) status() api.SidecarStatus {
	s := api.SidecarStatus{Node: m.Flags.Node, Version: Version, NotReady: m.health.Failing(), Cluster: m.clusterStatus()}
	s.Ready = len(s.NotReady) == 0
	if p := m.drainProgress(); p.Done || p.Seconds > 0 {
		s.Drain = &p
	}
	return s
}
