// Package wire reads and appends the values of Keyward's own binary formats: little-endian integers, varints as in
// Protocol Buffers, bytes and length-prefixed records. It allocates no memory except in Reader.String and Writer's append.
package wire

import (
	"encoding/binary"
	"errors"
	"math"
)

// ErrTruncated is the error of a Reader whose input ends within a value.
var ErrTruncated = errors.New("truncated")

// ErrVarint is the error of a Reader that meets a varint of more than 64 bits.
var ErrVarint = errors.New("varint out of range")

var le = binary.LittleEndian

// past is an offset behind the end of every input, with room for what later reads add to it.
const past = math.MaxInt / 2

// Reader reads values from the front of a byte slice. After the first error, every method returns a zero value, so a caller may
// read several values and check Err once. The zero Reader is an empty input.
type Reader struct {
	b   []byte
	at  int // offset of the next byte; beyond len(b) after an error
	err error
}

// NewReader returns a Reader of b. The Reader and the slices that it returns share b's memory.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Err returns the first error, or nil.
func (r *Reader) Err() error {
	if r.err == nil && r.at > len(r.b) {
		return ErrTruncated
	}
	return r.err
}

// Fail records err unless there has been an error before. Nothing can be read after it.
func (r *Reader) Fail(err error) {
	if r.err = r.Err(); r.err == nil {
		r.err = err
	}
	r.at = past
}

// Len returns the number of bytes that have not been read. It is 0 after an error.
func (r *Reader) Len() int { return max(0, len(r.b)-r.at) }

// U8 reads one byte.
func (r *Reader) U8() byte {
	at := r.at
	if r.at++; r.at > len(r.b) {
		return 0
	}
	return r.b[at]
}

// U16 reads two bytes.
func (r *Reader) U16() uint16 {
	at := r.at
	if r.at += 2; r.at > len(r.b) {
		return 0
	}
	return le.Uint16(r.b[at:])
}

// U32 reads four bytes.
func (r *Reader) U32() uint32 {
	at := r.at
	if r.at += 4; r.at > len(r.b) {
		return 0
	}
	return le.Uint32(r.b[at:])
}

// U64 reads eight bytes.
func (r *Reader) U64() uint64 {
	at := r.at
	if r.at += 8; r.at > len(r.b) {
		return 0
	}
	return le.Uint64(r.b[at:])
}

// I64 reads eight bytes as a signed number.
func (r *Reader) I64() int64 { return int64(r.U64()) }

// Uvarint reads an unsigned varint.
func (r *Reader) Uvarint() uint64 {
	if r.at >= len(r.b) {
		r.at = past
		return 0
	}
	if v := r.b[r.at]; v < 0x80 {
		r.at++
		return uint64(v)
	}
	return r.longUvarint()
}

func (r *Reader) longUvarint() uint64 {
	v, n := binary.Uvarint(r.b[r.at:])
	switch {
	case n == 0:
		r.at = past
	case n < 0:
		r.Fail(ErrVarint)
	default:
		r.at += n
	}
	return v
}

// Varint reads a signed varint.
func (r *Reader) Varint() int64 {
	v := r.Uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// Bytes reads n bytes. The result shares the input's memory. A negative n is an error.
func (r *Reader) Bytes(n int) []byte {
	if n < 0 || n > len(r.b)-r.at {
		r.at = past
		return nil
	}
	at := r.at
	r.at += n
	return r.b[at:r.at:r.at]
}

// String reads n bytes into a string.
func (r *Reader) String(n int) string { return string(r.Bytes(n)) }

// Rest reads all bytes that are left.
func (r *Reader) Rest() []byte { return r.Bytes(r.Len()) }

// Record reads n bytes and returns a Reader of them. It has r's error, if there is one, but its own errors are not r's.
func (r *Reader) Record(n int) Reader {
	b := r.Bytes(n)
	return Reader{b: b, err: r.Err()}
}

// Writer appends values to a byte slice.
type Writer []byte

// U8 appends one byte.
func (w *Writer) U8(v byte) { *w = append(*w, v) }

// U16 appends two bytes.
func (w *Writer) U16(v uint16) { *w = le.AppendUint16(*w, v) }

// U32 appends four bytes.
func (w *Writer) U32(v uint32) { *w = le.AppendUint32(*w, v) }

// U64 appends eight bytes.
func (w *Writer) U64(v uint64) { *w = le.AppendUint64(*w, v) }

// I64 appends eight bytes.
func (w *Writer) I64(v int64) { w.U64(uint64(v)) }

// Uvarint appends an unsigned varint.
func (w *Writer) Uvarint(v uint64) { *w = binary.AppendUvarint(*w, v) }
