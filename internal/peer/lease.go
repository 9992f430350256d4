package peer

import (
	"errors"
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/wire"
)

// frameLease + a lease.BatchKind is the type of a frame with a lease message, since version 2. A member that does not
// support leases skips these frames and receives every request individually.
const frameLease = 40

const (
	maxLeaseItems = 512  // requests, grants or notices in one message
	maxName       = 1024 // bytes of a key's name
	leaseHead     = 10   // bytes of the head
)

// Flags of a lease request.
const (
	leaseWant      = 1
	leaseDedicated = 2
	leaseReclaim   = 4
	leaseAudit     = 8
	leaseAlways    = 16
	leaseUncapped  = 32
	// leasePartitionShift is where the rule's policy for partitions begins, a policy.PartitionChoice of two bits.
	leasePartitionShift = 6
	// leaseReclaimCrash is the highest bit of the watermark, which is a percentage. Grantors do not use the watermark.
	leaseReclaimCrash = 128
)

var (
	errLeaseItems = errors.New("too many requests, grants or notices")
	errName       = errors.New("name too long")
)

// leaseKind returns the kind of lease message in a frame of type typ, or false if the frame has none.
func leaseKind(typ byte) (k lease.BatchKind, ok bool) {
	k = lease.BatchKind(typ - frameLease)
	return k, typ > frameLease && k >= lease.Ask && k <= lease.Notify
}

// appendLease appends m, sent at now, as one frame. On an error it returns b unchanged. writers is scratch memory.
func appendLease(b []byte, m *lease.Batch, now int64, writers *counterwire.Writers) ([]byte, error) {
	if err := checkLease(m); err != nil {
		return b, err
	}
	*writers = writersOf(m, (*writers)[:0])
	w, at := beginFrame(b, frameLease+byte(m.Kind))
	w = w.U16(leaseHead).I64(now).U16(uint16(leaseItems(m)))
	w = writers.Append(w)
	for i := range m.Requests {
		w = appendLeaseRequest(w, &m.Requests[i], *writers)
	}
	for i := range m.Grants {
		w = appendGrant(w, &m.Grants[i], *writers)
	}
	for i := range m.Notices {
		w = appendNotice(w, &m.Notices[i])
	}
	if n := len(w) - at - 4; n > maxFrame {
		return b, fmt.Errorf("%w: %d bytes", errTooLong, n)
	}
	w.EndLen32(at)
	return w, nil
}

// leaseItems returns the number of items of m, all of which are of one kind.
func leaseItems(m *lease.Batch) int { return len(m.Requests) + len(m.Grants) + len(m.Notices) }

// checkLease returns an error if m has more items, slots or bytes in a name than a receiver accepts.
func checkLease(m *lease.Batch) error {
	if leaseItems(m) > maxLeaseItems {
		return errLeaseItems
	}
	for i := range m.Requests {
		switch r := &m.Requests[i]; {
		case len(r.Name) > maxName:
			return errName
		case len(r.State.Slots) > counterwire.MaxSlots:
			return counterwire.ErrSlots
		}
	}
	for i := range m.Grants {
		if len(m.Grants[i].State.Slots) > counterwire.MaxSlots {
			return counterwire.ErrSlots
		}
	}
	return nil
}

// split returns two messages with half of m's items each. two is false if m has fewer than two items.
func split(m *lease.Batch) (a, b lease.Batch, two bool) {
	r, g, n := len(m.Requests)/2, len(m.Grants)/2, len(m.Notices)/2
	a = lease.Batch{Kind: m.Kind, Requests: m.Requests[:r], Grants: m.Grants[:g], Notices: m.Notices[:n]}
	b = lease.Batch{Kind: m.Kind, Requests: m.Requests[r:], Grants: m.Grants[g:], Notices: m.Notices[n:]}
	return a, b, r+g+n > 0
}

func writersOf(m *lease.Batch, t counterwire.Writers) counterwire.Writers {
	for i := range m.Requests {
		t = t.With(m.Requests[i].State.Slots)
	}
	for i := range m.Grants {
		t = t.With(m.Grants[i].State.Slots)
	}
	return t
}

func appendLeaseRequest(w wire.Writer, r *lease.GrantRequest, writers counterwire.Writers) wire.Writer {
	at := len(w)
	w = w.U32(0).U64(r.Key[0]).U64(r.Key[1]).U64(r.RingPos).U64(r.Domain).U64(r.Seq)
	w = w.I64(r.Window).U64(r.Have).U64(r.Left).U64(r.Demand).I64(r.State.TAT)
	w = w.I64(int64(r.Rule.Window)).U32(r.Rule.Limit).U32(r.Rule.Burst)
	w = w.U32(r.Terms.Min).U32(r.Terms.Max).I64(int64(r.Terms.TTL)).I64(int64(r.Terms.Sync))
	w = w.U32(r.Terms.Weight).U32(r.Terms.Slack)
	w = w.U8(byte(r.Rule.Algorithm)).U8(leaseRequestFlags(r)).U8(r.Terms.Watermark | bit(r.Terms.ReclaimCrash, leaseReclaimCrash)).U8(r.Terms.SubKeys)
	w = w.U16(uint16(len(r.Name))).U16(uint16(len(r.State.Slots))).String(r.Name)
	w = counterwire.AppendSlots(w, r.State.Slots, writers)
	w.EndLen32(at)
	return w
}

func leaseRequestFlags(r *lease.GrantRequest) byte {
	return bit(r.Want, leaseWant) | bit(r.Terms.Dedicated, leaseDedicated) | bit(r.Terms.Reclaim, leaseReclaim) |
		bit(r.Terms.Audit, leaseAudit) | bit(r.Always, leaseAlways) | bit(r.Terms.Uncapped, leaseUncapped) |
		byte(r.Terms.Partition)<<leasePartitionShift
}

func appendGrant(w wire.Writer, g *lease.Grant, writers counterwire.Writers) wire.Writer {
	at := len(w)
	w = w.U32(0).U64(g.Key[0]).U64(g.Key[1]).U64(g.Seq).I64(g.Window).U64(g.Total).U64(g.Used)
	w = w.I64(int64(g.Left)).I64(g.State.TAT).U32(g.Limit).U16(uint16(len(g.State.Slots))).U8(byte(g.Flags))
	w = counterwire.AppendSlots(w, g.State.Slots, writers)
	w.EndLen32(at)
	return w
}

func appendNotice(w wire.Writer, n *lease.Notice) wire.Writer {
	at := len(w)
	w = w.U32(0).U64(n.Key[0]).U64(n.Key[1]).I64(n.Window).I64(int64(n.Left)).U32(n.Limit).U8(byte(n.Kind))
	if n.Kind == lease.Move {
		w = w.U64(n.Boot).I64(n.EndsAt)
	}
	w.EndLen32(at)
	return w
}

// leaseReader parses lease messages into its own memory, which the next message overwrites.
type leaseReader struct {
	counterwire.Decoder
	msg lease.Batch
}

// parse reads the payload of a frame that carries a message of kind k. sent is the sender's clock at sending. The
// result is valid until the next call.
func (r *leaseReader) parse(k lease.BatchKind, b []byte) (m *lease.Batch, sent int64, err error) {
	r.Reset()
	r.msg = lease.Batch{Kind: k, Requests: r.msg.Requests[:0], Grants: r.msg.Grants[:0], Notices: r.msg.Notices[:0]}
	in := wire.NewReader(b)
	head := in.Record(int(in.U16()))
	sent, count := head.I64(), int(head.U16())
	switch err := head.Err(); {
	case err != nil:
		return nil, 0, err
	case count > maxLeaseItems:
		return nil, 0, errLeaseItems
	}
	r.Writers(&in)
	record := r.parseNotice
	switch k {
	case lease.Ask:
		record = r.parseRequest
	case lease.Lend:
		record = r.parseGrant
	}
	if err := counterwire.Records(&in, count, record); err != nil {
		return nil, 0, err
	}
	if err := in.Err(); err != nil {
		return nil, 0, err
	}
	return &r.msg, sent, nil
}

func (r *leaseReader) parseRequest(in wire.Reader) error {
	var q lease.GrantRequest
	q.Key[0], q.Key[1] = in.U64(), in.U64()
	q.RingPos, q.Domain, q.Seq = in.U64(), in.U64(), in.U64()
	q.Window = in.I64()
	q.Have, q.Left, q.Demand = in.U64(), in.U64(), in.U64()
	q.State.TAT = in.I64()
	q.Rule.Window = time.Duration(in.I64())
	q.Rule.Limit, q.Rule.Burst = in.U32(), in.U32()
	t := &q.Terms
	t.Min, t.Max = in.U32(), in.U32()
	t.TTL, t.Sync = readDuration(&in), readDuration(&in)
	t.Weight, t.Slack = in.U32(), in.U32()
	q.Rule.Algorithm = limit.Algorithm(in.U8())
	flags := in.U8()
	q.Want, q.Always = flags&leaseWant != 0, flags&leaseAlways != 0
	t.Dedicated, t.Reclaim = flags&leaseDedicated != 0, flags&leaseReclaim != 0
	t.Audit, t.Uncapped = flags&leaseAudit != 0, flags&leaseUncapped != 0
	t.Partition = policy.PartitionChoice(flags >> leasePartitionShift)
	watermark := in.U8()
	t.Watermark, t.ReclaimCrash = watermark&^leaseReclaimCrash, watermark&leaseReclaimCrash != 0
	t.SubKeys = in.U8()
	name, slots := int(in.U16()), int(in.U16())
	if err := in.Err(); err != nil {
		return err
	}
	if err := q.Rule.Validate(); err != nil {
		return err
	}
	if name > maxName {
		return errName
	}
	q.Name = in.String(name)
	var err error
	if q.State.Slots, err = r.Slots(&in, slots); err != nil {
		return err
	}
	r.msg.Requests = append(r.msg.Requests, q)
	return nil
}

func (r *leaseReader) parseGrant(in wire.Reader) (err error) {
	var g lease.Grant
	g.Key[0], g.Key[1] = in.U64(), in.U64()
	g.Seq, g.Window = in.U64(), in.I64()
	g.Total, g.Used = in.U64(), in.U64()
	g.Left, g.State.TAT = readDuration(&in), in.I64()
	g.Limit = in.U32()
	slots := int(in.U16())
	g.Flags = lease.GrantFlags(in.U8())
	if g.State.Slots, err = r.Slots(&in, slots); err != nil {
		return err
	}
	r.msg.Grants = append(r.msg.Grants, g)
	return nil
}

func (r *leaseReader) parseNotice(in wire.Reader) error {
	var n lease.Notice
	n.Key[0], n.Key[1] = in.U64(), in.U64()
	n.Window, n.Left = in.I64(), readDuration(&in)
	n.Limit = in.U32()
	n.Kind = lease.NoticeKind(in.U8())
	if err := in.Err(); err != nil {
		return err
	}
	if n.Kind == lease.Move {
		n.Boot, n.EndsAt = in.U64(), in.I64()
		if err := in.Err(); err != nil {
			return err
		}
	}
	if n.Kind >= lease.Recall && n.Kind <= lease.Move { // other kinds are of later versions
		r.msg.Notices = append(r.msg.Notices, n)
	}
	return nil
}
