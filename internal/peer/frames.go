package peer

import "io"

// frames reads frames from a stream. Its buffer adapts to the traffic: most streams of a large cluster carry only
// heartbeats, which need little. It grows while reads fill it, at most to the largest frame, and shrinks after many
// short reads.
type frames struct {
	src   io.Reader
	buf   []byte
	r, w  int // unread bytes are buf[r:w]
	short int // consecutive reads that a buffer of firstBuffer would have held
}

const (
	firstBuffer = 512
	readBuffer  = 16 << 10 // limit of growth by reads; only a larger frame exceeds it
	shortReads  = 256      // consecutive short reads after which the buffer shrinks
)

// fill blocks for more bytes. Payloads that next has returned are invalid after it.
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

// fit grows the buffer after a read that filled it, and shrinks it after many short reads.
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

// next returns the next complete frame. ok is false if there is none yet.
func (f *frames) next() (typ byte, payload []byte, ok bool, err error) {
	typ, payload, rest, ok, err := nextFrame(f.buf[f.r:f.w])
	if ok {
		f.r = f.w - len(rest)
	}
	return typ, payload, ok, err
}
