package home_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/home"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// member is one member of a cluster that coordinates.
type member struct {
	id   ring.ID
	boot uint64
	node *owner.Node
	peer *peer.Peer
	home *home.Coordinator
}

// late passes messages on to a Coordinator that is made after the Peer.
type late struct{ to *home.Coordinator }

func newCluster(t *testing.T, n int) (ms []*member) {
	l := &federation.Layout{Name: "test", Epoch: 1, Coordinator: "home", Regions: []federation.LayoutRegion{{Name: "home"}}}
	s, err := federation.NewLayoutSchedule("home", time.Minute, []*federation.Layout{l}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := &member{id: ring.ID(fmt.Sprint("m", i)), boot: uint64(i)<<8 | 3}
		m.node = owner.New(owner.Options{Self: m.id, BootID: m.boot, Federation: owner.FederationPlace{Schedule: s}})
		var l late
		p, err := peer.New(peer.Options{
			Node: m.node, Self: m.id, BootID: m.boot, Cluster: "test", Listen: "127.0.0.1:0",
			OnPool: func(from ring.ID, msg *peer.PoolMessage) { l.to.Receive(from, msg) },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		m.peer = p
		m.home = home.New(home.Options{
			Members: p, Joined: func() bool { return true },
		})
		l.to = m.home
		ms = append(ms, m)
	}
	var rs []ring.Member
	for _, m := range ms {
		rs = append(rs, ring.Member{ID: m.id, BootID: m.boot, Incarnation: 1, Weight: 1})
	}
	for _, m := range ms {
		v := &membership.View{Self: m.id, BootID: m.boot, Ring: ring.New(rs), NRef: n, Joined: true}
		for _, o := range ms {
			x := membership.Member{ID: o.id, BootID: o.boot, State: membership.Active, Weight: 1}
			x.Peer = o.peer.Addr().String()
			v.Members = append(v.Members, x)
		}
		m.peer.SetView(v)
	}
	return ms
}

// request is the first request of a region for a key.
func request(key int, tokens uint64) federation.PoolRequest {
	return federation.PoolRequest{
		Key: federation.Key{uint64(key+1) * 0x9e3779b97f4a7c15, uint64(key)}, Rule: limit.Rule{Window: time.Hour, Limit: 1000}, Pool: 950,
		Epoch: 1, Boot: 1, Seq: 1, Tokens: tokens,
	}
}

// Whichever member a region asks, the pools of all keys are lent once, and by all members.
func TestAnyMemberLendsAllPools(t *testing.T) {
	ms := newCluster(t, 3)
	const keys = 60
	lent := make([]uint64, keys)
	for i := range 10 {
		region := fmt.Sprint("r", i)
		var rs []federation.PoolRequest
		for key := range keys {
			rs = append(rs, request(key, 100))
		}
		for len(rs) > 0 {
			if t.Context().Err() != nil {
				t.Fatalf("%s: %d requests without a reply", region, len(rs))
			}
			gs, err := ms[i%len(ms)].home.Lease(t.Context(), region, rs)
			if err != nil {
				t.Fatal(err)
			}
			replied := map[federation.Key]bool{}
			for _, g := range gs {
				replied[g.Key] = true
				lent[g.Key[1]] += g.Total
			}
			var rest []federation.PoolRequest
			for _, r := range rs {
				if !replied[r.Key] {
					r.Seq++
					rest = append(rest, r)
				}
			}
			rs = rest
		}
	}
	for key, n := range lent {
		if n != 950 {
			t.Errorf("key %d: %d lent of 950", key, n)
		}
	}
	for _, m := range ms {
		if n := m.peer.Stats().Pools; n == 0 || n == keys {
			t.Errorf("%s lends %d of %d pools", m.id, n, keys)
		}
	}
}

// A call whose requests do not fit into one message to a member has all replies.
func TestLargeCallsHaveAllReplies(t *testing.T) {
	ms := newCluster(t, 3)
	const keys = 1024
	for seq := uint64(1); ; seq++ {
		var rs []federation.PoolRequest
		for key := range keys {
			r := request(key, 1)
			r.Seq, r.Note = seq, make([]byte, federation.MaxNote)
			rs = append(rs, r)
		}
		gs, err := ms[0].home.Lease(t.Context(), "r", rs)
		if err == nil && len(gs) == keys {
			return
		}
		if seq == 200 { // the members own their keys only after a while
			t.Fatalf("%d of %d requests have a reply, %v", len(gs), keys, err)
		}
	}
}

// half is a Members of which one member, "deaf", does not reply, and another one, "own", is this member.
type half struct {
	to    *home.Coordinator
	sent  int
	alive bool
}

func (h *half) StepPool(_ string, r *federation.PoolRequest, _ owner.Waiter) owner.PoolResult {
	if r.Key[1]%2 == 1 {
		return owner.PoolResult{Kind: owner.Forward, Member: "deaf"}
	}
	return owner.PoolResult{Grant: federation.PoolGrant{Key: r.Key, Seq: r.Seq, Total: r.Tokens}, Lent: true}
}

func (h *half) SendPool(_ ring.ID, m *peer.PoolMessage) bool {
	if h.sent++; h.alive {
		reply := &peer.PoolMessage{ID: m.ID, Reply: true}
		for i := range m.Requests {
			reply.Grants = append(reply.Grants, federation.PoolGrant{Key: m.Requests[i].Key, Seq: m.Requests[i].Seq, Total: 1})
		}
		h.to.Receive("deaf", reply)
	}
	return true
}

// Calls wait for a member that does not reply once, and not again before it has replied. It still gets the requests.
func TestSilentMemberDelaysOneCall(t *testing.T) {
	h := &half{}
	c := home.New(home.Options{Members: h, Joined: func() bool { return true }})
	h.to = c
	rs := []federation.PoolRequest{request(0, 5), request(1, 5)}
	lease := func() (grants int, waited bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // less than a call waits
		defer cancel()
		gs, err := c.Lease(ctx, "r", rs)
		return len(gs), errors.Is(err, context.DeadlineExceeded)
	}
	if gs, err := c.Lease(t.Context(), "r", rs); len(gs) != 1 || err != nil {
		t.Fatalf("the first call: %v, %v", gs, err)
	}
	for i := range 3 {
		if n, waited := lease(); n != 1 || waited {
			t.Errorf("call %d of a silent member: %d grants, waited %v", i, n, waited)
		}
	}
	if h.sent != 4 {
		t.Errorf("%d of 4 calls reach the silent member", h.sent)
	}
	h.alive = true
	for i := range 2 {
		if n, _ := lease(); n != 2 {
			t.Errorf("call %d after its reply: %d grants", i, n)
		}
	}
	h.alive = false
	if _, waited := lease(); !waited {
		t.Error("a member that has replied is not waited for")
	}
}
