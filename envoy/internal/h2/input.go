package h2

import (
	"io"
	"net"

	"github.com/keyward/keyward/internal/budget"
)

const (
	smallInput    = 2 << 10  // bytes that an idle connection keeps for reading
	largeInput    = 64 << 10 // bytes that a busy one reads at once
	maxSmallReads = 64       // reads of little after which the buffer is small again
	frameHead     = 9
)

// input is what has been read of a connection. The Framer reads from it.
type input struct {
	buf        []byte
	r, w       int // buf[r:w] is to be gone through
	smallReads int // reads since one that needed this buffer
	reads      int // reads that found something

	account *budget.Account // says whether buf may be larger than it has to be
}

// fill reads once. What was not a whole frame stays.
func (i *input) fill(nc net.Conn) (int, error) {
	i.fit()
	n, err := nc.Read(i.buf[i.w:])
	i.w += n
	if n > 0 {
		i.reads++
		return n, nil // an error comes again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return 0, err
}

// fit makes room: for the frame that has begun, and for more at once when the last read found more than fits.
func (i *input) fit() {
	size, left := len(i.buf), i.w-i.r
	switch {
	case i.w == size && size < largeInput && i.account.Spare(int64(3*size)):
		size, i.smallReads = min(4*size, largeInput), 0
	case i.w > smallInput || size == smallInput:
		i.smallReads = 0
	case left == 0:
		if i.smallReads++; i.smallReads == maxSmallReads {
			size, i.smallReads = smallInput, 0
		}
	}
	if need := i.need(); need > size && 2*left >= size { // what was announced is believed as it comes
		size = min(4*size, need)
	}
	i.move(size)
}

// need is how long the frame is that has begun, as far as is known.
func (i *input) need() int {
	if b := i.buf[i.r:i.w]; len(b) >= frameHead {
		return min(frameHead+payload(b), largeInput)
	}
	return i.w - i.r
}

// move puts what is there to the beginning of a buffer of that size.
func (i *input) move(size int) {
	to := i.buf
	if size != len(i.buf) {
		to = make([]byte, size)
	}
	i.w = copy(to, i.buf[i.r:i.w])
	i.buf, i.r = to, 0
}

// shrink makes the buffer as small as what is there allows.
func (i *input) shrink() {
	if size := max(smallInput, i.w-i.r); size < len(i.buf) {
		i.move(size)
		i.smallReads = 0
	}
}

// payload is the length of a frame's payload, by its head.
func payload(b []byte) int { return int(b[0])<<16 | int(b[1])<<8 | int(b[2]) }

// hasFrame says that there is a whole frame, or the head of one that is too large.
func (i *input) hasFrame() bool {
	b := i.buf[i.r:i.w]
	if len(b) < frameHead {
		return false
	}
	n := payload(b)
	return n > minFrame || len(b) >= frameHead+n
}

// Read gives what is there to the Framer, which asks for no more.
func (i *input) Read(p []byte) (int, error) {
	n := copy(p, i.buf[i.r:i.w])
	if i.r += n; n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// take gives a payload where it lies. It is valid until the next fill.
func (i *input) take(n int) []byte {
	i.r += n
	return i.buf[i.r-n : i.r]
}
