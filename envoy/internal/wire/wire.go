// Package wire reads fields of messages in protobuf's wire format, without copies and allocations.
package wire

import (
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field is a field of a message. Which value is set depends on its type; values of other types than varint and bytes are
// skipped. Bytes share the memory of the message.
type Field struct {
	Bytes  []byte
	Varint uint64
	num    protowire.Number
	typ    protowire.Type
}

// IsBytes reports whether f has that number, and bytes.
func (f *Field) IsBytes(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.BytesType
}

// IsVarint reports whether f has that number, and a varint.
func (f *Field) IsVarint(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.VarintType
}

// Next returns the first field of b and what follows it. It returns false if b is malformed.
func Next(b []byte) (f Field, rest []byte, ok bool) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 || num > protowire.MaxValidNumber {
		return Field{}, nil, false
	}
	f.num, f.typ = num, typ
	b = b[n:]
	switch typ {
	case protowire.VarintType:
		f.Varint, n = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		f.Bytes, n = protowire.ConsumeBytes(b)
	default:
		n = protowire.ConsumeFieldValue(num, typ, b)
	}
	if n < 0 {
		return Field{}, nil, false
	}
	return f, b[n:], true
}

// Text returns b as a string, which shares its memory: it is valid until that changes.
func Text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
