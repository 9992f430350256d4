package peer

import "io"

// frames reads frames off a stream through a buffer that fits what comes: heartbeats need little of it, and most streams of a
// large cluster carry nothing else. It grows as long as reads fill it, to the largest frame and no further, and becomes small
// again when reads have been short for a while.
type frames struct {
	src   io.Reader
	buf   []byte
	r, w  int // unread bytes are buf[r:w]
	short int // reads in a row that the first buffer would have held
}

const (
	firstBuffer = 512
	readBuffer  = 16 << 10 // that reads alone make it grow to; beyond, only a frame does
	shortReads  = 256      // in a row, after which it is made small
)

// fill blocks for more bytes. Payloads that next returned are void after it.
func (f *frames) fill() error {
	if f.r > 0 {
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	if f.w == len(f.buf) {
		f.resize(min(max(firstBuffer, 4*len(f.buf)), max(readBuffer, 2*len(f.buf)), 4+maxFrame))
	}
	n, err := f.src.Read(f.buf[f.w:])
	f.w += n
	f.fit()
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// fit makes room for more after a read that filled the buffer, and gives room back after many that did not need it.
func (f *frames) fit() {
	if f.short++; f.w > firstBuffer {
		f.short = 0
	}
	switch {
	case f.w == len(f.buf) && len(f.buf) < readBuffer:
		f.resize(4 * len(f.buf))
	case f.short >= shortReads && len(f.buf) > firstBuffer:
		f.resize(firstBuffer)
	}
}

func (f *frames) resize(n int) {
	buf := make([]byte, n)
	copy(buf, f.buf[:f.w])
	f.buf = buf
}

// next is the next whole frame; ok is false when there is none yet.
func (f *frames) next() (typ byte, payload []byte, ok bool, err error) {
	typ, payload, rest, ok, err := nextFrame(f.buf[f.r:f.w])
	if ok {
		f.r = f.w - len(rest)
	}
	return typ, payload, ok, err
}
