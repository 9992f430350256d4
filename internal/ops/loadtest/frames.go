package loadtest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	frameHeader = 9       // bytes, RFC 9113, 4.1
	maxPayload  = 16384   // bytes in a frame, at most: the default, which neither side raises
	bigWindow   = 1 << 30 // bytes that the server may send us on a connection
	tableSize   = 4096    // bytes of a dynamic table that both sides begin with, RFC 7541
)

// frame is one frame that was read. Its payload is valid until the next.
type frame struct {
	kind    http2.FrameType
	flags   http2.Flags
	stream  uint32
	payload []byte
}

func readFrame(r *bufio.Reader) (f frame, err error) {
	head, err := r.Peek(frameHeader)
	if err != nil {
		return f, err
	}
	n := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	f.kind, f.flags, f.stream = http2.FrameType(head[3]), http2.Flags(head[4]), binary.BigEndian.Uint32(head[5:])&(1<<31-1)
	if n > maxPayload {
		return f, fmt.Errorf("a frame of %d bytes", n)
	}
	_, _ = r.Discard(frameHeader)
	if f.payload, err = r.Peek(n); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	_, _ = r.Discard(len(f.payload))
	return f, err
}

// body is the payload of a DATA or HEADERS frame without padding and priority.
func (f *frame) body() ([]byte, error) {
	b := f.payload
	if f.flags.Has(http2.FlagDataPadded) { // the same bit in both
		if len(b) == 0 || len(b)-1 < int(b[0]) {
			return nil, errors.New("padding longer than its frame")
		}
		b = b[1 : len(b)-int(b[0])]
	}
	if f.kind == http2.FrameHeaders && f.flags.Has(http2.FlagHeadersPriority) {
		if len(b) < 5 {
			return nil, errors.New("a priority cut short")
		}
		b = b[5:]
	}
	return b, nil
}

// frameKind is the type of a frame with its flags.
type frameKind struct {
	kind  http2.FrameType
	flags http2.Flags
}

func appendFrame(out []byte, k frameKind, stream uint32, payload ...byte) []byte {
	n := len(payload)
	out = append(out, byte(n>>16), byte(n>>8), byte(n), byte(k.kind), byte(k.flags))
	out = binary.BigEndian.AppendUint32(out, stream)
	return append(out, payload...)
}

func appendWindowUpdate(out []byte, n uint32) []byte {
	return appendFrame(out, frameKind{http2.FrameWindowUpdate, 0}, 0, binary.BigEndian.AppendUint32(nil, n)...)
}

// appendPreface begins a connection: no pushes, and a window that is never in the way.
func appendPreface(out []byte) []byte {
	out = append(out, http2.ClientPreface...)
	out = appendFrame(out, frameKind{http2.FrameSettings, 0}, 0, 0, byte(http2.SettingEnablePush), 0, 0, 0, 0)
	return appendWindowUpdate(out, bigWindow)
}

// blockReader reads header blocks. Servers repeat themselves: a block of nothing but indices (RFC 7541, 6.1) means what it meant before, as
// long as no other kind of block has come between and changed the table.
type blockReader struct {
	decoder *hpack.Decoder
	reply   *Reply // being read into
	known   []knownBlock
}

type knownBlock struct {
	block  []byte
	fields Reply
}

func newBlockReader() *blockReader {
	r := &blockReader{}
	r.decoder = hpack.NewDecoder(tableSize, r.set)
	return r
}

func (r *blockReader) set(f hpack.HeaderField) {
	switch f.Name {
	case ":status":
		r.reply.Status = f.Value
	case "grpc-status":
		r.reply.Code = f.Value
	case "grpc-message":
		r.reply.Why = f.Value
	}
}

func (r *blockReader) read(block []byte, into *Reply) error {
	for i := range r.known {
		if k := &r.known[i]; string(k.block) == string(block) {
			into.merge(&k.fields)
			return nil
		}
	}
	var fields Reply
	r.reply = &fields
	if _, err := r.decoder.Write(block); err != nil {
		return err
	}
	if err := r.decoder.Close(); err != nil {
		return err
	}
	into.merge(&fields)
	switch {
	case slices.ContainsFunc(block, func(b byte) bool { return b < 0x80 || b == 0xff }): // a literal, or an index of several bytes
		r.known = r.known[:0]
	case len(r.known) < 8:
		r.known = append(r.known, knownBlock{slices.Clone(block), fields})
	}
	return nil
}

func (r *Reply) merge(o *Reply) {
	if o.Status != "" {
		r.Status = o.Status
	}
	if o.Code != "" {
		r.Code, r.Why = o.Code, o.Why
	}
}
