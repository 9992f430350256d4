package cluster

import (
	"context"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/keyward/keyward/ring"
)

// Memberlist sends an announcement a few times, unacknowledged, and its queue may lose it: see
// TestMemberlistsQueueLosesMessages. Therefore each acknowledgement of a probe carries a digest of all announcements
// that its sender has. If the digest differs from this member's, although nothing was announced for a while, this
// member exchanges the complete state with the sender. Announcements that either of them lacks are repeated until
// both have the same digest. Members of earlier versions send no digest.

const (
	digestBytes = 8
	repairAfter = time.Second // since the last announcement, and between two exchanges; doubles while digests differ
)

// digest summarizes the announcements that a member has. It is guarded by its table.
type digest struct {
	sum     uint64            // XOR of hashes
	hashes  map[string]uint64 // of live boots, this one included, by memberlist name
	changed time.Time

	differs netip.AddrPort // a member that sent another digest since the last step
	wait    time.Duration  // until the next exchange
	last    time.Time      // exchange
}

// set replaces the announcement of a name. Nil removes it.
func (d *digest) set(name string, meta []byte) {
	h := uint64(0)
	if meta != nil {
		h = ring.Hash(name + "\x00" + string(meta))
	}
	if d.hashes == nil {
		d.hashes = make(map[string]uint64)
	}
	if d.hashes[name] == h {
		return
	}
	d.sum ^= d.hashes[name] ^ h
	d.changed = time.Now()
	if d.hashes[name] = h; h == 0 {
		delete(d.hashes, name)
	}
}

// AckPayload implements memberlist.PingDelegate.
func (t *table) AckPayload() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return binary.LittleEndian.AppendUint64(nil, t.digest.sum)
}

// NotifyPingComplete implements memberlist.PingDelegate. It compares another member's digest with this member's.
func (t *table) NotifyPingComplete(other *memberlist.Node, _ time.Duration, payload []byte) {
	if len(payload) < digestBytes {
		return
	}
	sum := binary.LittleEndian.Uint64(payload)
	ip, ok := netip.AddrFromSlice(other.Addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch d := &t.digest; {
	case sum == d.sum:
		d.wait = 0
	case ok && time.Since(d.changed) >= repairAfter:
		d.differs = netip.AddrPortFrom(ip.Unmap(), other.Port)
		t.signal()
	}
}

// repairTarget returns the address of a member whose digest differed, and reports whether it is time to exchange the
// complete state with it. The time until the next exchange doubles up to most.
func (t *table) repairTarget(now time.Time, most time.Duration) (netip.AddrPort, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &t.digest
	at := d.differs
	d.differs = netip.AddrPort{}
	if !at.IsValid() || now.Sub(d.last) < d.wait {
		return at, false
	}
	d.last, d.wait = now, min(max(repairAfter, 2*d.wait), max(repairAfter, most))
	return at, true
}

// repair exchanges the complete state with a member whose digest differed.
func (c *Cluster) repair(ctx context.Context, now time.Time) {
	at, due := c.table.repairTarget(now, c.o.Timing.PushPull)
	if !due || c.gossip == nil || ctx.Err() != nil || !c.repairing.CompareAndSwap(false, true) {
		return
	}
	c.done.Go(func() {
		defer c.repairing.Store(false)
		err := c.gossip.join(at)
		c.log.Debug("exchanged the complete state with a member whose announcements differed",
			"address", at.String(), "error", err)
	})
}
