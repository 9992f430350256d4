package peer

import (
	"errors"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/poolwire"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// framePool is the type of a frame with a PoolMessage, since version 2. A member that does not support it skips the
// frame, so that the region asks again.
const framePool = 48

const (
	poolHead     = 20  // bytes of the head without the name of the region
	maxPoolItems = 512 // requests or grants of one message
	// fullPool is the size of a message from which it gets no further item.
	fullPool = maxFrame / 2
)

// Flags of a pool message.
const (
	poolReply = 1
	poolMore  = 2
)

var errPoolItems = errors.New("too many requests or grants")

// PoolMessage carries requests of a region to the member that owns the counters of their pools, or its grants back.
type PoolMessage struct {
	ID       uint64 // of the requests, unique at their sender for a while; a reply repeats it
	Reply    bool
	More     bool   // another reply to the same message follows
	Region   string // without Reply
	Requests []federation.PoolRequest
	Grants   []federation.PoolGrant // with Reply: of those requests that are not refused
}

// poolWaiter is the owner.Waiter of a request for a part of a pool.
type poolWaiter interface {
	// CompletePool delivers the result. It is called at most once, without locks, and must not block.
	CompletePool(d *owner.PoolDone)
}

// StepPool passes a request of a region for a part of a pool to Node; see there. The waiter has a method CompletePool.
func (p *Peer) StepPool(region string, r *federation.PoolRequest, to owner.Waiter) owner.PoolResult {
	res, fx := p.o.Node.StepPool(p.clock.now(), region, r, to)
	p.apply(fx)
	return res
}

// SendPool sends m to a member, in as many messages as necessary. It returns false if that is not possible now. It does
// not block.
func (p *Peer) SendPool(to ring.ID, m *PoolMessage) bool {
	l := (*p.links.Load())[to]
	return l != nil && l.enqueuePool(m)
}

// enqueuePool queues m. Pool messages are few, so they have as much room as those of leases.
func (l *link) enqueuePool(m *PoolMessage) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live || l.version < handoffVersion || len(l.out) > 2*l.bounds.bytes {
		return false
	}
	l.wakeWriter()
	rest := *m
	for more := true; more; {
		l.out, more = appendPool(l.out, &rest, l.clock.now())
	}
	return true
}

// appendPool appends as much of m as fits into one frame, sent at now, and removes that from m. It returns true if
// something is left.
func appendPool(b []byte, m *PoolMessage, now int64) (_ []byte, more bool) {
	w, at := beginFrame(b, framePool)
	w = w.U16(uint16(poolHead + len(m.Region))).I64(now).U64(m.ID)
	flags, count := len(w), len(w)+1
	w = w.U8(0).U16(0).U8(byte(len(m.Region))).String(m.Region)
	n := 0
	for full := at + fullPool; len(m.Requests) > 0 && n < maxPoolItems && len(w) < full; n++ {
		w = poolwire.AppendRequest(w, &m.Requests[0])
		m.Requests = m.Requests[1:]
	}
	for full := at + fullPool; len(m.Grants) > 0 && n < maxPoolItems && len(w) < full; n++ {
		w = appendPoolGrant(w, &m.Grants[0])
		m.Grants = m.Grants[1:]
	}
	more = len(m.Requests)+len(m.Grants) > 0
	w[flags] = bit(m.Reply, poolReply) | bit(more || m.More, poolMore)
	w[count], w[count+1] = byte(n), byte(n>>8)
	w.EndLen32(at)
	return w, more
}

// appendPoolGrant appends a grant. What does not fit into a frame of the other regions is left out.
func appendPoolGrant(w wire.Writer, g *federation.PoolGrant) wire.Writer {
	at, short := len(w), *g
	w = poolwire.AppendGrant(w, g)
	for len(w)-at > fullPool/2 && len(short.Others) > 0 {
		short.Others = short.Others[:len(short.Others)/2]
		w = poolwire.AppendGrant(w[:at], &short)
	}
	return w
}

// parsePool reads the payload of a frame. The result does not share its memory. sent is the sender's clock at sending.
func parsePool(b []byte) (m PoolMessage, sent int64, err error) {
	r := wire.NewReader(b)
	head := r.Record(int(r.U16()))
	sent, m.ID = head.I64(), head.U64()
	flags, n := head.U8(), int(head.U16())
	m.Region = head.String(int(head.U8()))
	m.Reply, m.More = flags&poolReply != 0, flags&poolMore != 0
	if err := errors.Join(head.Err(), r.Err()); err != nil {
		return m, 0, err
	}
	if n > maxPoolItems {
		return m, 0, errPoolItems
	}
	read := m.readRequests
	if m.Reply {
		read = m.readGrants
	}
	err = read(&r, n)
	return m, sent, err
}

func (m *PoolMessage) readRequests(r *wire.Reader, n int) error {
	for range n {
		record := r.Record(int(r.U16()))
		var q federation.PoolRequest
		if err := errors.Join(r.Err(), poolwire.ReadRequest(&record, &q)); err != nil {
			return err
		}
		m.Requests = append(m.Requests, q)
	}
	return r.Err()
}

func (m *PoolMessage) readGrants(r *wire.Reader, n int) error {
	for range n {
		record := r.Record(int(r.U32()))
		var g federation.PoolGrant
		if err := errors.Join(r.Err(), poolwire.ReadGrant(&record, &g)); err != nil {
			return err
		}
		m.Grants = append(m.Grants, g)
	}
	return r.Err()
}

// receivePool processes a pool message.
func (s *server) receivePool(now int64, payload []byte) {
	m, sent, err := parsePool(payload)
	if err != nil {
		s.countRefused(parseErrorReason(err))
		return
	}
	if reason := s.refusalReason(now, sent, false); reason != "" {
		s.countRefused(reason)
		return
	}
	s.p.o.OnPool(s.from, &m)
}
