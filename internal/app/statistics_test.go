package app

import (
	"bufio"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/settings"
	"github.com/keyward/keyward/internal/stats"
)

// Without a local cache its statistics are not exported: to users of statsd, gauges that are always 0 would be new.
func TestLocalCacheStatistics(t *testing.T) {
	for _, bytes := range []int{0, 1 << 20} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		m := &sidecar{Setup: Setup{Flags: flags{memberFlags: memberFlags{Node: "a"}}, Log: slog.New(slog.DiscardHandler)}, reg: newRegistry(), stats: stats.New(stats.Options{})}
		m.security = newSecurity(&m.Flags, certs.Files{}, m.reg, m.Log)
		m.Settings.Behavior.LocalCacheBytes = bytes
		m.Settings.Stats = settings.StatsSettings{
			Statsd: true, Host: "127.0.0.1", Port: ln.Addr().(*net.TCPAddr).Port, Network: "tcp", FlushInterval: 10 * time.Millisecond,
		}
		if err := m.startCounting(); err != nil {
			t.Fatal(err)
		}
		if err := m.startStats(); err != nil {
			t.Fatal(err)
		}
		m.stats.Gauge("mark").Set(1)
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		found := false
		in := bufio.NewScanner(conn)
		for marks := 0; marks < 3 && in.Scan(); { // between the first and the third every gauge was sent
			if strings.HasPrefix(in.Text(), "mark:") {
				marks++
			}
			found = found || strings.HasPrefix(in.Text(), "ratelimit.localcache.")
		}
		if found != (bytes > 0) {
			t.Errorf("with a cache of %d bytes: exported %v", bytes, found)
		}
		m.statsd.Close()
		conn.Close()
		_ = m.peer.Close()
	}
}
