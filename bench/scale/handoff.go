package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// newcomerWeight gives a joiner nearly all keys of the one member there is.
const newcomerWeight = 100

// handoffs moves as many counters, from one member to another.
func handoffs(m *Measured, sizes []int) error {
	m.Handoff = nil
	for _, keys := range sizes {
		h, err := measureHandoff(keys)
		if err != nil {
			return fmt.Errorf("%d counters: %w", keys, err)
		}
		m.Handoff = append(m.Handoff, h)
	}
	return nil
}

func measureHandoff(keys int) (h HandoffCost, err error) {
	room := owner.Options{MaxKeys: 3 * keys, DomainQuota: 3 * keys}
	giver, err := newNode(0, room)
	if err != nil {
		return h, err
	}
	defer giver.Close()
	taker, err := newNode(1, room)
	if err != nil {
		return h, err
	}
	defer taker.Close()
	all := []*node{giver, taker}
	a, b := Member(0), Member(1)
	b.Weight = newcomerWeight
	one, two := ring.New([]ring.Member{a}), ring.New([]ring.Member{a, b})
	giver.tell(one, all[:1])
	if err := await("the giver to hold its keys", patience, func() bool { return giver.node.Progress().Complete() }); err != nil {
		return h, err
	}
	empty := live()
	if err := charge(giver, keys); err != nil {
		return h, err
	}
	h.Memory = (live() - empty) / float64(keys)
	var moved float64
	d, err := during(func() error {
		for _, m := range all {
			m.tell(one, all)
		}
		if err := await("the taker to have its copies", patience, func() bool { return taker.node.Progress().Prefetched }); err != nil {
			return err
		}
		for _, m := range all {
			m.tell(two, all)
		}
		err := await("everything to be moved", patience, func() bool {
			g, t := giver.node.Progress(), taker.node.Progress()
			return g.Complete() && t.Complete() && g.Ring == two.Fingerprint() && t.Ring == g.Ring
		})
		moved = sent(all)
		return err
	})
	if err != nil {
		return h, err
	}
	for i := range keys {
		if at := two.Owner(ring.Hash(name(i))); two.At(at).ID == taker.id {
			h.Counters++
		}
	}
	if moved < float64(h.Counters) {
		return h, fmt.Errorf("%d counters have a new owner, and only %.0f were sent", h.Counters, moved)
	}
	h.Bytes, h.Rate, h.CPU = d.bytes/moved, moved/d.seconds, d.cpu*1e6/moved
	return h, nil
}

// charge counts one hit of each key.
func charge(n *node, keys int) error {
	const each = 200
	qs, as := make([]owner.Request, each), make([]owner.Result, each)
	for first := 0; first < keys; first += each {
		for i := range qs {
			key := name(first + i)
			qs[i] = owner.Request{
				Key: owner.Key{ring.Hash(key), ring.Hash("key of " + key)}, RingPos: ring.Hash(key), Hits: 1,
				Rule: limit.Rule{Limit: 1000, Window: 24 * time.Hour},
			}
		}
		n.Decide(policy.Deadline{Silent: time.Now().Add(time.Minute)}, false, qs, as)
	}
	if got := n.Stats().Keys; got < keys {
		return errors.New("not all keys were counted")
	}
	return nil
}

// name is the i-th key.
func name(i int) string { return fmt.Sprintf("moving-%09d", i) }

// sent is how many counters have left the members for good; copies ahead are not among them.
func sent(all []*node) (sum float64) {
	for _, n := range all {
		families, err := n.reg.Gather()
		if err != nil {
			return 0
		}
		for _, f := range families {
			if f.GetName() != "keyward_handoff_keys_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				if m.GetLabel()[0].GetValue() == "sent" {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
