package cluster

import (
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// message is a message about a member, as memberlist would send it.
type message struct{ about, text string }

func (m message) Invalidates(memberlist.Broadcast) bool { return false }
func (m message) Name() string                          { return m.about }
func (m message) Message() []byte                       { return []byte(m.text) }
func (m message) Finished()                             {}

// TestMemberlistsQueueLosesMessages shows why announcements have to be repeated. When a message replaces the only
// other one, the queue restarts its numbering, and a later message of the same length gets the same number: it
// replaces the first one, which is about another member. When this test fails, memberlist has fixed this.
func TestMemberlistsQueueLosesMessages(t *testing.T) {
	q := memberlist.TransmitLimitedQueue{NumNodes: func() int { return 3 }, RetransmitMult: 4}
	for _, m := range []message{{"c", "c has ring 2"}, {"c", "c is settled"}, {"a", "a has ring 2"}, {"b", "b has ring 2"}} {
		q.QueueBroadcast(m)
	}
	if n := q.NumQueued(); n != 2 {
		t.Errorf("%d messages about three members are queued; the queue used to lose one", n)
	}
}

// byGossipAlone makes announcements arrive by gossip only, for the duration of the test.
func byGossipAlone(o *Options) {
	o.Timing.PushPull, o.Timing.JoinIdle = time.Hour, time.Hour
	o.Timing.Probe, o.Timing.ProbeTimeout = 300*time.Millisecond, 100*time.Millisecond
}

// Members that announce at the same time make memberlist's queue lose an announcement.
func TestAnnouncementLostByTheQueue(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var all []*Cluster
		for i, name := range []string{"a-0", "b-1", "c-2"} {
			o := options(name)
			byGossipAlone(&o)
			o.BootID = 1<<62 + uint64(i) // so that all announcements have the same length
			if i > 0 {
				o.Join = []string{all[0].Gossip()}
			}
			if i == 2 {
				o.Timing.Gossip = 2 * time.Second // its queue holds the announcements of all three
			}
			all = append(all, up(t, o))
		}
		a, b, c := all[0], all[1], all[2]
		eventually(t, "three on one ring", func() bool { return whole(all...) })
		time.Sleep(6 * time.Second) // until its queue is empty
		hears := func(m, of *Cluster, rules uint64) func() bool {
			return func() bool { x, ok := m.View().Find(of.View().Self); return ok && x.InForce == rules }
		}
		for rules := range uint64(2) {
			c.SetRules(rules+1, rules+1)
			eventually(t, "own announcement", hears(c, c, rules+1))
			eventually(t, "announced",
				func() bool { m, _ := decode([]byte(announcedBy(c.table))); return m.InForce == rules+1 })
		}
		a.SetRules(2, 2)
		eventually(t, "the first other's announcement", hears(c, a, 2))
		b.SetRules(2, 2)
		eventually(t, "the second other's announcement", hears(c, b, 2))
		eventually(t, "c's announcement", func() bool { return hears(a, c, 2)() && hears(b, c, 2)() })
	})
}

// Memberlist sends an announcement a few times. If all of them are lost, the acknowledgements of the other members
// show that they lack it.
func TestAnnouncementLostByTheNetwork(t *testing.T) {
	virtual(t, func(t *testing.T) {
		nets := map[string]*faults{}
		all := three(t, func(o *Options) {
			byGossipAlone(o)
			nets[o.Node] = &faults{}
			o.wrap = nets[o.Node].wrap
		})
		c := all[2]
		nets["c"].udp.Store(true)
		c.SetRules(5, 6)
		time.Sleep(500 * time.Millisecond) // it is sent four times within 100 ms
		nets["c"].udp.Store(false)
		for _, m := range all[:2] {
			eventually(t, "the announcement", func() bool { x, ok := m.View().Find("c"); return ok && x.InForce == 5 })
		}
	})
}

// announcedBy returns the member's metadata as memberlist last spread it.
func announcedBy(t *table) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.announced
}
