package app

import (
	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/assign"
)

// quotas lets Envoys spend parts of limits.
type quotas struct {
	server   *rlqs.QuotaServer
	assigner *assign.Assigner
}

func (q *quotas) start(m *sidecar) {
	q.assigner = assign.New(assign.Options{
		Charger: m.peer,
		Members: func() int { return m.cluster.Load().View().Ring.Len() },
		Send:    func(stream, serial uint64, as []rlqs.Assignment) error { return q.server.Send(stream, serial, as) },
	})
	q.server = rlqs.NewServer(rlqs.Options{Service: m.service, Book: q.assigner, Registerer: m.reg})
	m.reg.MustRegister(q.assigner.Collectors()...)
}

// close ends the streams. Envoys keep what they were assigned, and open their streams again at another member.
func (q *quotas) close() {
	if q.server == nil {
		return
	}
	q.server.Close()
	q.assigner.Close()
}
