package app

import (
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/owner"
)

// escrowsShown is the most keys of /v1/escrows.
const escrowsShown = 200

// escrows returns the document of /v1/escrows.
func (m *sidecar) escrows() api.Escrows {
	now, x := time.Now().UnixNano(), &m.federation
	e := api.Escrows{Member: m.Flags.Node, Region: x.region, Coordinators: []api.RegionCoordinator{}, Keys: []api.KeyEscrow{}}
	if x.layouts != nil {
		e.Federation, e.Epoch = x.layouts.inForce().Name, x.layouts.epoch()
	}
	names := map[uint32]string{}
	for _, name := range x.names() {
		id := federation.AuthorityID(name)
		away, rtt := m.node.CoordinatorState(id)
		names[id] = name
		e.Coordinators = append(e.Coordinators, api.RegionCoordinator{Name: name, Away: away, RoundTrip: rtt.Seconds()})
	}
	held, all := m.node.Escrows(now, escrowsShown)
	e.Total = all
	for i := range held {
		e.Keys = append(e.Keys, keyEscrow(&held[i], names))
	}
	return e
}

func keyEscrow(h *owner.HeldEscrow, names map[uint32]string) api.KeyEscrow {
	k := api.KeyEscrow{
		Digest: digest(h.Key), Coordinator: names[h.Authority], Limit: h.Rule.Limit, Window: h.Rule.Window.String(),
		Have: h.Have, Left: h.Left, Used: h.Used, Usable: h.Usable, UsedUp: h.UsedUp, Demand: round(h.Demand),
		Ends: timeAt(h.Ends), Answered: timeAt(h.AnsweredAt),
	}
	for i := range h.Others {
		o := &h.Others[i]
		k.Others = append(k.Others, api.OtherRegion{Region: o.Region, Have: o.Granted, Left: o.Left, Age: o.Age.Seconds()})
	}
	return k
}

// timeAt returns the time of that many Unix nanoseconds, or nil for 0.
func timeAt(ns int64) *time.Time {
	if ns == 0 {
		return nil
	}
	t := time.Unix(0, ns)
	return &t
}
