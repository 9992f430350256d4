package handoff

import (
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// TestHeartbeatsGoAlongWithAnswers requires that usually one member of a pair starts a heartbeat and the other adds its
// own to the reply. That makes three writes per pair and interval, not four. No ping may be later than 6/5 of the
// interval plus one Tick.
func TestHeartbeatsGoAlongWithAnswers(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d", "e", "f")
	type pair struct{ from, to ring.ID }
	last, writes, longest := map[pair]int64{}, 0, int64(0)
	c.watch = func(from ring.ID, outs []protocol.Outbound) {
		for i, o := range outs {
			if i == 0 || outs[i-1].To != o.To {
				writes++
			}
			if o.Msg.Kind == protocol.Ping {
				p := pair{from, o.To}
				if at, any := last[p]; any {
					longest = max(longest, c.now-at)
				}
				last[p] = c.now
			}
		}
	}
	const beats = 60
	ping := int64(membership.DefaultDetection.Heartbeat())
	for end := c.now + beats*ping; c.now < end; c.now += 100 * ms {
		for _, id := range c.ids() { // one after the other; otherwise all would start
			c.send(id, c.machines[id].Tick(c.now))
			c.pump()
		}
	}
	c.steady()
	const pairs = 6 * 5 / 2
	if len(last) != 2*pairs || longest > ping*6/5+100*ms {
		t.Errorf("%d of %d pings, up to %v apart", len(last), 2*pairs, time.Duration(longest))
	}
	if perBeat := float64(writes) / pairs / beats; perBeat > 3.3 {
		t.Errorf("%.2f writes per pair and interval, want 3", perBeat)
	}
}

// TestConfirmationsAreGathered requires that a confirmation that replaces one which is valid for another interval costs
// nothing until the next Tick, and that a missing one takes effect immediately.
func TestConfirmationsAreGathered(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	m := c.machines["a"]
	before := m.View()
	pong := protocol.Message{Kind: protocol.Pong, Flags: protocol.Confirmed, Sent: c.now}
	if n := testing.AllocsPerRun(100, func() {
		pong.Sent++
		m.Step(pong.Sent, "b", c.bootID("b"), &pong)
	}); n != 0 || m.View() != before {
		t.Errorf("a confirmation makes %v allocations; new view: %v", n, m.View() != before)
	}
	late := pong.Sent + int64(m.opts.Detection.OwnershipTTL())
	m.Tick(pong.Sent)
	if n := m.View().ConfirmedBy(late); n != 2 {
		t.Errorf("%d members confirm after the Tick, want 2", n)
	}

	c.now += 2 * int64(m.opts.Detection.OwnershipTTL())
	c.send("a", m.pingPeers(c.now, true))
	c.reach("a", ExtentNone)
	c.pump()
	c.reach("a", ExtentFull)
}

// BenchmarkHeartbeat measures a heartbeat of a peer and its reply to the local one, with a part of a Tick.
func BenchmarkHeartbeat(b *testing.B) {
	for _, n := range []int{3, 100, 300} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ids := make([]ring.ID, n)
			for i := range ids {
				ids[i] = ring.ID(fmt.Sprintf("member-%03d", i))
			}
			c := newCluster(b, ids...)
			m := c.machines[ids[0]]
			ping := protocol.Message{Kind: protocol.Ping, Ring: m.View().Ring().Fingerprint(), Seq: 1}
			pong := protocol.Message{Kind: protocol.Pong, Flags: protocol.Confirmed}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.now += ms
				id := ids[1+i%(n-1)]
				ping.Seq, ping.Sent, pong.Sent = m.peers[id].seq, c.now, c.now
				m.Step(c.now, id, c.bootID(id), &ping)
				m.Step(c.now, id, c.bootID(id), &pong)
				if i%max(1, n/5) == 0 { // ten times per second
					m.Tick(c.now)
				}
			}
		})
	}
}
