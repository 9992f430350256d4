package handoff

import (
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

// Of two members one begins, and the other's heartbeat goes along with its answer: three writes a pair and beat, not four,
// and nobody waits for longer than a beat and a fifth, and the Tick that it may take.
func TestHeartbeatsGoAlongWithAnswers(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d", "e", "f")
	type pair struct{ from, to ring.ID }
	last, writes, longest := map[pair]int64{}, 0, int64(0)
	c.watch = func(from ring.ID, outs []Outbound) {
		for i, o := range outs {
			if i == 0 || outs[i-1].To != o.To {
				writes++
			}
			if o.Msg.Kind == Ping {
				p := pair{from, o.To}
				if at, any := last[p]; any {
					longest = max(longest, c.now-at)
				}
				last[p] = c.now
			}
		}
	}
	const beats = 60
	for end := c.now + beats*pingInterval; c.now < end; c.now += 100 * ms {
		for _, id := range c.ids() { // one after the other, or they would all begin
			c.send(id, c.machines[id].Tick(c.now))
			c.pump()
		}
	}
	c.steady()
	const pairs = 6 * 5 / 2
	if len(last) != 2*pairs || longest > pingInterval*6/5+100*ms {
		t.Errorf("%d of %d pings, up to %v apart", len(last), 2*pairs, time.Duration(longest))
	}
	if perBeat := float64(writes) / pairs / beats; perBeat > 3.3 {
		t.Errorf("%.2f writes a pair and beat, want 3", perBeat)
	}
}

// A confirmation that takes the place of one which holds for a beat longer changes nothing at once, and costs nothing; the next
// Tick has it. One that was missing gives the right back when it comes.
func TestConfirmationsAreGathered(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	m := c.machines["a"]
	before := m.View()
	pong := Message{Kind: Pong, Flags: Confirmed, Sent: c.now}
	if n := testing.AllocsPerRun(100, func() {
		pong.Sent++
		m.Step(pong.Sent, "b", c.bootID("b"), &pong)
	}); n != 0 || m.View() != before {
		t.Errorf("%v allocations for a confirmation, and a new view: %v", n, m.View() != before)
	}
	late := pong.Sent + int64(m.opts.OwnershipTTL)
	m.Tick(pong.Sent)
	if n := m.View().ConfirmedBy(late); n != 2 {
		t.Errorf("%d confirm at the end of what the Tick has seen, want self and one other", n)
	}

	c.now += 2 * int64(m.opts.OwnershipTTL)
	c.send("a", m.pingPeers(c.now, true))
	c.reach("a", ExtentNone)
	c.pump()
	c.reach("a", ExtentFull)
}

// BenchmarkHeartbeat is a heartbeat of another member and the answer to self's, with a part of a Tick.
func BenchmarkHeartbeat(b *testing.B) {
	for _, n := range []int{3, 100, 300} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ids := make([]ring.ID, n)
			for i := range ids {
				ids[i] = ring.ID(fmt.Sprintf("member-%03d", i))
			}
			c := newCluster(b, ids...)
			m := c.machines[ids[0]]
			ping := Message{Kind: Ping, Ring: m.View().Ring().Fingerprint(), Seq: 1}
			pong := Message{Kind: Pong, Flags: Confirmed}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.now += ms
				id := ids[1+i%(n-1)]
				ping.Seq, ping.Sent, pong.Sent = m.peers[id].seq, c.now, c.now
				m.Step(c.now, id, c.bootID(id), &ping)
				m.Step(c.now, id, c.bootID(id), &pong)
				if i%max(1, n/5) == 0 { // ten times a second
					m.Tick(c.now)
				}
			}
		})
	}
}
