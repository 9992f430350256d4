package h2

import (
	"io"
	"net"

	"github.com/keyward/keyward/internal/budget"
)

const (
	smallInput    = 2 << 10  // size of the read buffer of an idle connection, in bytes
	largeInput    = 64 << 10 // size of the read buffer of a busy connection, in bytes
	maxSmallReads = 64       // small reads after which the buffer shrinks
	frameHead     = 9
)

// input buffers what was read from a connection. The Framer reads from it.
type input struct {
	buf        []byte
	r, w       int // buf[r:w] has not been processed
	smallReads int // reads since one that needed this buffer size
	reads      int // reads that returned data

	account *budget.Account // reports whether buf may be larger than necessary
}

// fill reads once. It keeps the incomplete frame at the end of the buffer.
func (i *input) fill(nc net.Conn) (int, error) {
	i.fit()
	n, err := nc.Read(i.buf[i.w:])
	i.w += n
	if n > 0 {
		i.reads++
		return n, nil // the next read returns the error again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return 0, err
}

// fit makes room for the frame that has begun, and for more if the last read filled the buffer.
func (i *input) fit() {
	size, left := len(i.buf), i.w-i.r
	switch {
	case i.w == size && size < largeInput && i.account.HasSpare(int64(3*size)):
		size, i.smallReads = min(4*size, largeInput), 0
	case i.w > smallInput || size == smallInput:
		i.smallReads = 0
	case left == 0:
		if i.smallReads++; i.smallReads == maxSmallReads {
			size, i.smallReads = smallInput, 0
		}
	}
	if need := i.need(); need > size && 2*left >= size { // trust an announced length only as data arrives
		size = min(4*size, need)
	}
	i.move(size)
}

// need returns the length of the frame that has begun, if it is known yet.
func (i *input) need() int {
	if b := i.buf[i.r:i.w]; len(b) >= frameHead {
		return min(frameHead+payload(b), largeInput)
	}
	return i.w - i.r
}

// move copies the unprocessed bytes to the start of a buffer of the given size.
func (i *input) move(size int) {
	to := i.buf
	if size != len(i.buf) {
		to = make([]byte, size)
	}
	i.w = copy(to, i.buf[i.r:i.w])
	i.buf, i.r = to, 0
}

// shrink makes the buffer as small as its contents allow.
func (i *input) shrink() {
	if size := max(smallInput, i.w-i.r); size < len(i.buf) {
		i.move(size)
		i.smallReads = 0
	}
}

// payload returns the payload length from a frame header.
func payload(b []byte) int { return int(b[0])<<16 | int(b[1])<<8 | int(b[2]) }

// hasFrame reports whether the buffer contains a complete frame, or the header of one that is too large.
func (i *input) hasFrame() bool {
	b := i.buf[i.r:i.w]
	if len(b) < frameHead {
		return false
	}
	n := payload(b)
	return n > minFrame || len(b) >= frameHead+n
}

// Read returns buffered bytes to the Framer, which never asks for more than are there.
func (i *input) Read(p []byte) (int, error) {
	n := copy(p, i.buf[i.r:i.w])
	if i.r += n; n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// take returns the next n bytes in place. They are valid until the next fill.
func (i *input) take(n int) []byte {
	i.r += n
	return i.buf[i.r-n : i.r]
}
