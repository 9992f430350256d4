//go:build linux

package dashboards

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/keyward/keyward/envoy/module/moduletest"
	"github.com/keyward/keyward/internal/lab"
)

var errNoLease = errors.New("no lease yet")

func (c *town) moduleSocket(member string) string {
	return filepath.Join(c.Dir, member+".module.sock")
}

// moduleLoad spends leases of a member in one second of two, as a module does, until the context ends. Leases are given back
// when nothing is spent.
func (c *town) moduleLoad(ctx context.Context, member string) {
	c.Helper()
	m, err := moduletest.Dial(c.moduleSocket(member))
	c.must(err)
	var mu sync.Mutex
	misses, empty, closed := uint64(0), uint64(0), false // guarded by mu
	c.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		closed = true
		m.Close()
	})
	every(ctx, 10*time.Millisecond, func() {
		mu.Lock()
		defer mu.Unlock()
		if closed || time.Now().Second()%2 == 0 {
			return
		}
		out, _ := m.Spend(1, "app", "busy", "in-envoy")
		switch out {
		case moduletest.Taken:
			return
		case moduletest.NoLease:
			misses++
		default:
			empty++
		}
		countMisses(m, misses, empty, 0)
		_ = m.Interest(1, "app", "busy", "in-envoy")
	})
}

// countMisses writes the counters of a module to its memory.
func countMisses(m *moduletest.ModuleClient, misses, empty, corrupt uint64) {
	for i, n := range []uint64{misses, empty, corrupt} {
		m.Write(64+8*i, binary.LittleEndian.AppendUint64(nil, n))
	}
}

// moduleFaults sends a member what is no message of a module, and corrupts the memory of another module that has a lease.
func (c *town) moduleFaults(s *lab.Sidecar) {
	c.Helper()
	m, err := moduletest.Dial(c.moduleSocket(s.Name))
	c.must(err)
	defer m.Close()
	c.must(m.Send([]byte("nonsense")))
	<-m.Done()

	bad, err := moduletest.Dial(c.moduleSocket(s.Name))
	c.must(err)
	defer bad.Close()
	ctx, cancel := context.WithTimeout(c.Context(), 20*time.Second)
	defer cancel()
	c.must(lab.Await(ctx, "a lease", func(context.Context) error {
		if out, _ := bad.Spend(1, "app", "busy", "corrupt"); out == moduletest.Taken {
			return nil
		}
		_ = bad.Interest(50, "app", "busy", "corrupt")
		return errNoLease
	}))
	countMisses(bad, 1, 1, 100)
	for slot := range 16384 {
		bad.Write(4096+32*slot+16, binary.LittleEndian.AppendUint64(nil, ^uint64(0)))
	}
	select {
	case <-bad.Done():
	case <-ctx.Done():
		c.Fatal("the sidecar does not end the connection of a module whose memory is corrupt")
	}
}
