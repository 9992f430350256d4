package peer

import (
	"errors"
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
)

// frameLease + a lease.BatchKind is the type of the frame that carries such a message, from version 2 on. Whoever knows
// nothing of leases skips it, and is asked question by question.
const frameLease = 40

const (
	maxLeaseItems    = 512  // requests, grants or notices of one message
	maxName          = 1024 // bytes of a key's name
	leaseHead        = 10
	leaseRequestSize = 136 // without name and slots
	grantSize        = 71  // without slots
	noticeSize       = 37
)

// Flags of a request.
const (
	leaseWant      = 1
	leaseDedicated = 2
	leaseReclaim   = 4
	leaseAudit     = 8
	leaseAlways    = 16
	leaseUncapped  = 32
)

var (
	errLeaseItems = errors.New("too many requests, grants or notices")
	errName       = errors.New("name too long")
)

// leaseKind is the kind of lease message that a frame carries.
func leaseKind(typ byte) (k lease.BatchKind, ok bool) {
	k = lease.BatchKind(typ - frameLease)
	return k, typ > frameLease && k >= lease.Ask && k <= lease.Notify
}

// appendLease appends m, sent at now, as one frame. On an error b is returned as it was.
func appendLease(b []byte, m *lease.Batch, now int64, writers *writerTable) ([]byte, error) {
	count := len(m.Requests) + len(m.Grants) + len(m.Notices) // of these, one kind has them all
	if count > maxLeaseItems {
		return b, errLeaseItems
	}
	*writers = writersOf(m, (*writers)[:0])
	out, at := beginFrame(b, frameLease+byte(m.Kind))
	out = le.AppendUint16(out, leaseHead)
	out = le.AppendUint64(out, uint64(now))
	out = le.AppendUint16(out, uint16(count))
	out = writers.append(out)
	var err error
	for i := range m.Requests {
		if out, err = appendLeaseRequest(out, &m.Requests[i], *writers); err != nil {
			return b, err
		}
	}
	for i := range m.Grants {
		if out, err = appendGrant(out, &m.Grants[i], *writers); err != nil {
			return b, err
		}
	}
	for i := range m.Notices {
		out = appendNotice(out, &m.Notices[i])
	}
	if n := len(out) - at - 4; n > maxFrame {
		return b, fmt.Errorf("%w: %d bytes", errTooLong, n)
	}
	endFrame(out, at)
	return out, nil
}

// split are two messages that say what m does, if it has two items.
func split(m *lease.Batch) (a, b lease.Batch, two bool) {
	r, g, n := len(m.Requests)/2, len(m.Grants)/2, len(m.Notices)/2
	a = lease.Batch{Kind: m.Kind, Requests: m.Requests[:r], Grants: m.Grants[:g], Notices: m.Notices[:n]}
	b = lease.Batch{Kind: m.Kind, Requests: m.Requests[r:], Grants: m.Grants[g:], Notices: m.Notices[n:]}
	return a, b, r+g+n > 0
}

func writersOf(m *lease.Batch, t writerTable) writerTable {
	for i := range m.Requests {
		t = t.with(m.Requests[i].State.Slots)
	}
	for i := range m.Grants {
		t = t.with(m.Grants[i].State.Slots)
	}
	return t
}

func appendLeaseRequest(b []byte, r *lease.GrantRequest, writers writerTable) ([]byte, error) {
	switch {
	case len(r.Name) > maxName:
		return b, errName
	case len(r.State.Slots) > maxSlots:
		return b, errSlots
	}
	at := len(b)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, r.Key[0])
	b = le.AppendUint64(b, r.Key[1])
	b = le.AppendUint64(b, r.Owner)
	b = le.AppendUint64(b, r.Domain)
	b = le.AppendUint64(b, r.Seq)
	b = le.AppendUint64(b, uint64(r.Window))
	b = le.AppendUint64(b, r.Have)
	b = le.AppendUint64(b, r.Left)
	b = le.AppendUint64(b, r.Demand)
	b = le.AppendUint64(b, uint64(r.State.TAT))
	b = le.AppendUint64(b, uint64(r.Rule.Window))
	b = le.AppendUint32(b, r.Rule.Limit)
	b = le.AppendUint32(b, r.Rule.Burst)
	b = appendKnobs(b, &r.Terms)
	b = append(b, byte(r.Rule.Algorithm), leaseRequestFlags(r), r.Terms.Watermark, r.Terms.SubKeys)
	b = le.AppendUint16(b, uint16(len(r.Name)))
	b = le.AppendUint16(b, uint16(len(r.State.Slots)))
	b = append(b, r.Name...)
	b = appendSlots(b, r.State.Slots, writers)
	endRecord(b, at)
	return b, nil
}

func appendKnobs(b []byte, k *lease.Terms) []byte {
	b = le.AppendUint32(b, k.Min)
	b = le.AppendUint32(b, k.Max)
	b = le.AppendUint64(b, uint64(k.TTL))
	b = le.AppendUint64(b, uint64(k.Sync))
	b = le.AppendUint32(b, k.Weight)
	return le.AppendUint32(b, k.Slack)
}

func leaseRequestFlags(r *lease.GrantRequest) (flags byte) {
	for _, f := range [...]struct {
		set bool
		bit byte
	}{
		{r.Want, leaseWant}, {r.Terms.Dedicated, leaseDedicated}, {r.Terms.Reclaim, leaseReclaim}, {r.Terms.Audit, leaseAudit},
		{r.Always, leaseAlways}, {r.Terms.Uncapped, leaseUncapped},
	} {
		if f.set {
			flags |= f.bit
		}
	}
	return flags
}

func appendGrant(b []byte, g *lease.Grant, writers writerTable) ([]byte, error) {
	if len(g.State.Slots) > maxSlots {
		return b, errSlots
	}
	at := len(b)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, g.Key[0])
	b = le.AppendUint64(b, g.Key[1])
	b = le.AppendUint64(b, g.Seq)
	b = le.AppendUint64(b, uint64(g.Window))
	b = le.AppendUint64(b, g.Total)
	b = le.AppendUint64(b, g.Used)
	b = le.AppendUint64(b, uint64(g.Left))
	b = le.AppendUint64(b, uint64(g.State.TAT))
	b = le.AppendUint32(b, g.Limit)
	b = le.AppendUint16(b, uint16(len(g.State.Slots)))
	b = append(b, byte(g.Flags))
	b = appendSlots(b, g.State.Slots, writers)
	endRecord(b, at)
	return b, nil
}

func appendNotice(b []byte, n *lease.Notice) []byte {
	at := len(b)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, n.Key[0])
	b = le.AppendUint64(b, n.Key[1])
	b = le.AppendUint64(b, uint64(n.Window))
	b = le.AppendUint64(b, uint64(n.Left))
	b = le.AppendUint32(b, n.Limit)
	b = append(b, byte(n.Kind))
	endRecord(b, at)
	return b
}

// endRecord writes the length of the record that began at at.
func endRecord(b []byte, at int) { le.PutUint32(b[at:], uint32(len(b)-at-4)) }

// leaseReader reads lease messages into memory of its own, which the next message takes over.
type leaseReader struct {
	slotReader
	msg lease.Batch
}

// parse reads the payload of a frame that carries a message of kind k, sent at sent by its sender's clock. What it
// returns is void after the next call.
func (r *leaseReader) parse(k lease.BatchKind, b []byte) (m *lease.Batch, sent int64, err error) {
	r.slots, r.writers = r.slots[:0], r.writers[:0]
	r.msg = lease.Batch{Kind: k, Requests: r.msg.Requests[:0], Grants: r.msg.Grants[:0], Notices: r.msg.Notices[:0]}
	if len(b) < 2 {
		return nil, 0, errShort
	}
	n := int(le.Uint16(b))
	if b = b[2:]; n < leaseHead || n > len(b) {
		return nil, 0, errShort
	}
	sent = int64(le.Uint64(b))
	count := int(le.Uint16(b[8:]))
	if count > maxLeaseItems {
		return nil, 0, errLeaseItems
	}
	if b, err = r.parseWriters(b[n:]); err != nil {
		return nil, 0, err
	}
	record := r.parseNotice
	switch k {
	case lease.Ask:
		record = r.parseRequest
	case lease.Lend:
		record = r.parseGrant
	}
	if _, err := eachRecord(b, count, record); err != nil {
		return nil, 0, err
	}
	return &r.msg, sent, nil
}

func (r *leaseReader) parseRequest(b []byte) error {
	if len(b) < leaseRequestSize {
		return errShort
	}
	flags := b[129]
	q := lease.GrantRequest{
		Key: [2]uint64{le.Uint64(b), le.Uint64(b[8:])}, Owner: le.Uint64(b[16:]), Domain: le.Uint64(b[24:]), Seq: le.Uint64(b[32:]),
		Window: int64(le.Uint64(b[40:])), Have: le.Uint64(b[48:]), Left: le.Uint64(b[56:]), Demand: le.Uint64(b[64:]),
		Rule: limit.Rule{
			Window: time.Duration(le.Uint64(b[80:])), Limit: le.Uint32(b[88:]), Burst: le.Uint32(b[92:]), Algorithm: limit.Algorithm(b[128]),
		},
		Terms: parseKnobs(b[96:], flags), Want: flags&leaseWant != 0, Always: flags&leaseAlways != 0,
		State: limit.State{TAT: int64(le.Uint64(b[72:]))},
	}
	q.Terms.Watermark, q.Terms.SubKeys = b[130], b[131]
	if err := q.Rule.Validate(); err != nil {
		return err
	}
	name, slots, b := int(le.Uint16(b[132:])), int(le.Uint16(b[134:])), b[leaseRequestSize:]
	switch {
	case name > maxName:
		return errName
	case len(b) < name:
		return errShort
	}
	q.Name = string(b[:name])
	var err error
	if q.State.Slots, err = r.parseSlots(b[name:], slots); err != nil {
		return err
	}
	r.msg.Requests = append(r.msg.Requests, q)
	return nil
}

func parseKnobs(b []byte, flags byte) lease.Terms {
	return lease.Terms{
		Min: le.Uint32(b), Max: le.Uint32(b[4:]), TTL: duration(b[8:]), Sync: duration(b[16:]), Weight: le.Uint32(b[24:]), Slack: le.Uint32(b[28:]),
		Dedicated: flags&leaseDedicated != 0, Reclaim: flags&leaseReclaim != 0, Audit: flags&leaseAudit != 0,
		Uncapped: flags&leaseUncapped != 0,
	}
}

func (r *leaseReader) parseGrant(b []byte) (err error) {
	if len(b) < grantSize {
		return errShort
	}
	g := lease.Grant{
		Key: [2]uint64{le.Uint64(b), le.Uint64(b[8:])}, Seq: le.Uint64(b[16:]), Window: int64(le.Uint64(b[24:])), Total: le.Uint64(b[32:]),
		Used: le.Uint64(b[40:]), Left: duration(b[48:]), State: limit.State{TAT: int64(le.Uint64(b[56:]))}, Limit: le.Uint32(b[64:]),
		Flags: lease.GrantFlags(b[70]),
	}
	if g.State.Slots, err = r.parseSlots(b[grantSize:], int(le.Uint16(b[68:]))); err != nil {
		return err
	}
	r.msg.Grants = append(r.msg.Grants, g)
	return nil
}

func (r *leaseReader) parseNotice(b []byte) error {
	if len(b) < noticeSize {
		return errShort
	}
	n := lease.Notice{
		Key: [2]uint64{le.Uint64(b), le.Uint64(b[8:])}, Window: int64(le.Uint64(b[16:])), Left: duration(b[24:]), Limit: le.Uint32(b[32:]),
		Kind: lease.NoticeKind(b[36]),
	}
	if n.Kind >= lease.Recall && n.Kind <= lease.Cool { // others are of later versions
		r.msg.Notices = append(r.msg.Notices, n)
	}
	return nil
}

// duration is a length of time, which is never negative.
func duration(b []byte) time.Duration { return max(0, time.Duration(le.Uint64(b))) }
