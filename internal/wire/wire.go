// Package wire reads and appends the values of Keyward's own binary formats: little-endian integers, varints as in
// Protocol Buffers, bytes and length-prefixed records. It allocates no memory except in Reader.String and Writer's
// append.
package wire

import (
	"encoding/binary"
	"errors"
	"math"
)

// ErrMalformed is the error of a Reader whose input ends within a value, or has a varint of more than 64 bits.
var ErrMalformed = errors.New("truncated or malformed")

var le = binary.LittleEndian

// failed is the offset of a Reader after Fail: behind the end of every input, with room for what later reads add.
const failed = math.MaxInt / 2

// Reader reads values from the front of a byte slice. After an error, every method returns a zero value, so a caller
// may read several values and check Err once. The zero Reader is an empty input.
type Reader struct {
	b  []byte
	at int // offset of the next byte; greater than len(b) after an error
}

// NewReader returns a Reader of b. The Reader and the slices that it returns share b's memory.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Err returns ErrMalformed if a read has failed or Fail was called.
func (r *Reader) Err() error {
	if r.at > len(r.b) {
		return ErrMalformed
	}
	return nil
}

// Fail makes the input malformed: nothing can be read after it.
func (r *Reader) Fail() { r.at = failed }

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
func (r *Reader) Uvarint() (v uint64) {
	at := r.at
	for shift := 0; shift < 64 && at < len(r.b); shift += 7 {
		c := r.b[at]
		at++
		if c < 0x80 && (shift < 63 || c < 2) {
			r.at = at
			return v | uint64(c)<<shift
		}
		v |= uint64(c&0x7f) << shift
	}
	r.Fail()
	return 0
}

// Varint reads a signed varint.
func (r *Reader) Varint() int64 {
	v := r.Uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// Bytes reads n bytes. The result shares the input's memory. A negative n is an error.
func (r *Reader) Bytes(n int) []byte {
	at := r.at
	if n < 0 || n > len(r.b)-at {
		r.Fail()
		return nil
	}
	r.at += n
	return r.b[at:r.at:r.at]
}

// String reads n bytes into a string.
func (r *Reader) String(n int) string { return string(r.Bytes(n)) }

// Rest reads all bytes that are left.
func (r *Reader) Rest() []byte { return r.Bytes(r.Len()) }

// Record reads n bytes and returns a Reader of them. If r has an error, so has the record. An error of the record is
// not one of r.
func (r *Reader) Record(n int) Reader {
	at := r.at
	if n < 0 || n > len(r.b)-at {
		r.Fail()
		return Reader{at: failed}
	}
	r.at += n
	return Reader{b: r.b[at:r.at]}
}

// Writer appends values to a byte slice. Every method returns the extended slice, as append does.
type Writer []byte

// U8 appends one byte.
func (w Writer) U8(v byte) Writer { return append(w, v) }

// U16 appends two bytes.
func (w Writer) U16(v uint16) Writer { return le.AppendUint16(w, v) }

// U32 appends four bytes.
func (w Writer) U32(v uint32) Writer { return le.AppendUint32(w, v) }

// U64 appends eight bytes.
func (w Writer) U64(v uint64) Writer { return le.AppendUint64(w, v) }

// I64 appends eight bytes.
func (w Writer) I64(v int64) Writer { return le.AppendUint64(w, uint64(v)) }

// Uvarint appends an unsigned varint.
func (w Writer) Uvarint(v uint64) Writer { return binary.AppendUvarint(w, v) }

// Varint appends a signed varint.
func (w Writer) Varint(v int64) Writer { return binary.AppendVarint(w, v) }

// String appends the bytes of s.
func (w Writer) String(s string) Writer { return append(w, s...) }

// EndLen32 sets the four bytes at offset at to the number of bytes behind them.
func (w Writer) EndLen32(at int) { le.PutUint32(w[at:], uint32(len(w)-at-4)) }
