package app

import (
	"time"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/assign"
	"github.com/keyward/keyward/internal/quota"
)

// quotas lets Envoys spend parts of limits.
type quotas struct {
	server   *rlqs.QuotaServer
	assigner *assign.Assigner
}

func (q *quotas) start(m *sidecar) {
	q.assigner = assign.New(assign.Options{
		Charger: m.peer,
		Members: m.members,
		Calls:   m.service.CollectCalls,
		Send:    func(stream, serial uint64, as []rlqs.Assignment) error { return q.server.Send(stream, serial, as) },
	})
	q.server = rlqs.NewServer(rlqs.Options{Service: m.service, Book: q.assigner, Registerer: m.reg})
	m.reg.MustRegister(q.assigner.Collectors()...)
}

// members returns the number of members of the ring.
func (m *sidecar) members() int { return m.cluster.Load().View().Ring.Len() }

// retireWait is how long Envoys may take to acknowledge that their assignments end with the window.
const retireWait = 300 * time.Millisecond

// close gives back what Envoys need not have, and ends the streams. Envoys keep what they were assigned in this window, and open
// their streams again at another member.
func (q *quotas) close() {
	if q.server == nil {
		return
	}
	q.assigner.Retire(retireWait)
	q.server.Close()
	q.assigner.Close()
}

// The most keys of /v1/quotas, and the most Envoys of each.
const (
	quotasShown = 200
	envoysShown = 100
)

// quotaStatus returns the document of /v1/quotas.
func (m *sidecar) quotaStatus() api.Quotas {
	q := api.Quotas{Member: m.Flags.Node, Keys: []api.AssignedKey{}}
	a := m.quotas.assigner
	if a == nil {
		return q
	}
	now, states, total := a.States(quotasShown, envoysShown)
	q.Total, q.Streams = total, a.Streams()
	for i := range states {
		q.Keys = append(q.Keys, keyQuota(now, &states[i]))
	}
	return q
}

func keyQuota(now int64, s *assign.KeyState) api.AssignedKey {
	k := api.AssignedKey{
		Limit: s.Quota.Limit, Window: s.Quota.Window.String(), Unlimited: s.Quota.Unlimited, Have: s.Held, Next: s.Next,
		Charged: s.Charged, Ends: timeAt(s.Ends), Total: s.Lines, Envoys: []api.EnvoyQuota{},
	}
	if b := s.Bucket; b != nil {
		k.Domain, k.Name, k.Digest = b.Domain, string(b.AppendName(nil)), digest(b.Request.Key)
	}
	for i := range s.Envoys {
		l := &s.Envoys[i]
		e := api.EnvoyQuota{
			Name: l.Name, Stream: l.Stream, Rate: round(l.Rate), Assigned: assignedNames[l.Kind], Lease: l.Lease, Left: l.Lease - l.Proven,
			Charged: l.Charge, Acknowledged: timeAt(l.Acked), Stalled: l.Stalled,
			ReportAge: round(time.Duration(now - l.Reported).Seconds()),
		}
		if l.Kind != 0 {
			e.Expires = timeAt(l.Ends)
		}
		k.Envoys = append(k.Envoys, e)
	}
	return k
}

var assignedNames = map[quota.PushKind]string{quota.Pair: "lease", quota.Same: "lease", quota.Deny: "deny", quota.Allow: "allow"}
