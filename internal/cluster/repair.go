package cluster

import (
	"context"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/keyward/keyward/ring"
)

// Memberlist sends an announcement a few times, without an answer, and its queue may lose it: see TestMemberlistsQueueLosesMessages.
// So each acknowledgement of a probe carries a digest of all announcements that its sender has. When it differs from self's,
// although nothing was announced for a while, self exchanges everything with that member: what either of them lacks, its own
// announcement included, is repeated until both show the same. Members of earlier versions send no digest.

const (
	digestBytes = 8
	repairAfter = time.Second // without news, and between two exchanges; it doubles as long as digests differ
)

// digest is what a member's acknowledgements show of the announcements that it has. Its table guards it.
type digest struct {
	sum     uint64            // XOR of hashes
	hashes  map[string]uint64 // of live boots, self included, by memberlist name
	changed time.Time

	differs netip.AddrPort // a member that showed another digest since the last look
	wait    time.Duration  // until the next exchange
	last    time.Time      // exchange
}

// set takes the place of what was announced under a name. Nil takes it away.
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

// NotifyPingComplete implements memberlist.PingDelegate: it compares the digests of another member and self.
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

// repairTarget returns the address of a member that lacks an announcement, or has one that self lacks, if it is time to exchange
// everything with it. The time until the next one doubles up to most.
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

// repair exchanges everything with a member that showed another digest.
func (c *Cluster) repair(ctx context.Context, now time.Time) {
	at, due := c.table.repairTarget(now, c.o.Timing.PushPull)
	if !due || c.gossip == nil || ctx.Err() != nil || !c.repairing.CompareAndSwap(false, true) {
		return
	}
	c.done.Go(func() {
		defer c.repairing.Store(false)
		err := c.gossip.join(at)
		c.log.Debug("exchanged everything with a member whose announcements differed", "address", at.String(), "error", err)
	})
}
