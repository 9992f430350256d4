// Package poolwire encodes the requests and grants of federations, for the calls of regions and for the messages between
// members. The document PROTOCOL.md of federation/remote specifies the layout.
package poolwire

import (
	"bytes"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/wire"
)

const (
	// MaxName is the most bytes of PoolRequest.Name; longer ones are not sent.
	MaxName = 4 << 10
	// MaxRegion is the most bytes of the name of a region.
	MaxRegion = 255

	// RequestSize is the bytes of a request's record without note and name.
	RequestSize = 113
	// GrantSize is the bytes of a grant's record without others.
	GrantSize = 66
	// LineSize is the bytes of a line without region and note.
	LineSize = 27
)

// AppendRequest appends a record with its length. The request is valid.
func AppendRequest(w wire.Writer, r *federation.PoolRequest) wire.Writer {
	name := r.Name
	if len(name) > MaxName {
		name = "" // only coordinators that need it refuse the request then
	}
	w = w.U16(uint16(RequestSize + len(r.Note) + len(name)))
	w = w.U64(r.Key[0]).U64(r.Key[1])
	w = w.I64(int64(r.Rule.Window)).U32(r.Rule.Limit).U32(r.Rule.Burst).U8(byte(r.Rule.Algorithm))
	w = w.U64(r.Pool).U32(r.Epoch).U64(r.Boot).U64(r.Seq)
	w = w.I64(r.Window).U64(r.Have).U64(r.Left).U64(r.Tokens).I64(r.Past.Window).U64(r.Past.Have)
	w = append(w.U16(uint16(len(r.Note))), r.Note...)
	return w.U16(uint16(len(name))).String(name)
}

// ReadRequest reads a record without its length. The result does not share its memory.
func ReadRequest(r *wire.Reader, q *federation.PoolRequest) error {
	q.Key = federation.Key{r.U64(), r.U64()}
	q.Rule.Window, q.Rule.Limit, q.Rule.Burst = time.Duration(r.I64()), r.U32(), r.U32()
	q.Rule.Algorithm = limit.Algorithm(r.U8())
	q.Pool, q.Epoch, q.Boot, q.Seq = r.U64(), r.U32(), r.U64(), r.U64()
	q.Window, q.Have, q.Left, q.Tokens = r.I64(), r.U64(), r.U64(), r.U64()
	q.Past = federation.Past{Window: r.I64(), Have: r.U64()}
	q.Note = readNote(r)
	n := int(r.U16())
	if n > MaxName {
		r.Fail()
	}
	q.Name = r.String(n)
	return r.Err()
}

// readNote reads a note. A note longer than federation.MaxNote is an error.
func readNote(r *wire.Reader) []byte {
	n := int(r.U16())
	if n > federation.MaxNote {
		r.Fail()
	}
	if n == 0 {
		return nil
	}
	return bytes.Clone(r.Bytes(n))
}

// AppendGrant appends a record with its length.
func AppendGrant(w wire.Writer, g *federation.PoolGrant) wire.Writer {
	at := len(w)
	w = w.U32(0).U64(g.Key[0]).U64(g.Key[1]).U64(g.Seq).I64(g.Window)
	w = w.U64(g.Total).U64(g.Used).U64(g.Usable).I64(int64(g.Left)).U16(uint16(len(g.Others)))
	for i := range g.Others {
		l := &g.Others[i]
		w = w.U8(byte(len(l.Region))).String(l.Region).U64(l.Granted).U64(l.Left).I64(int64(l.Age))
		w = append(w.U16(uint16(len(l.Note))), l.Note...)
	}
	w.EndLen32(at)
	return w
}

// ReadGrant reads a record without its length. The result does not share its memory.
func ReadGrant(r *wire.Reader, g *federation.PoolGrant) error {
	g.Key, g.Seq, g.Window = federation.Key{r.U64(), r.U64()}, r.U64(), r.I64()
	g.Total, g.Used, g.Usable, g.Left = r.U64(), r.U64(), r.U64(), time.Duration(r.I64())
	n := int(r.U16())
	if n*LineSize > r.Len() {
		r.Fail()
	}
	if r.Err() != nil || n == 0 {
		return r.Err()
	}
	g.Others = make([]federation.RegionLine, n)
	for i := range g.Others {
		l := &g.Others[i]
		l.Region = r.String(int(r.U8()))
		l.Granted, l.Left, l.Age, l.Note = r.U64(), r.U64(), time.Duration(r.I64()), readNote(r)
	}
	return r.Err()
}
