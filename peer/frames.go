package peer

import "io"

// frames reads frames off a stream through a buffer that grows to the largest frame and no further.
type frames struct {
	src  io.Reader
	buf  []byte
	r, w int // unread bytes are buf[r:w]
}

const readBuffer = 16 << 10

// fill blocks for more bytes. Payloads that next returned are void after it.
func (f *frames) fill() error {
	if f.r > 0 {
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	if f.w == len(f.buf) {
		grown := make([]byte, min(max(readBuffer, 2*len(f.buf)), 4+maxFrame))
		copy(grown, f.buf[:f.w])
		f.buf = grown
	}
	n, err := f.src.Read(f.buf[f.w:])
	f.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// next is the next whole frame; ok is false when there is none yet.
func (f *frames) next() (typ byte, payload []byte, ok bool, err error) {
	typ, payload, rest, ok, err := nextFrame(f.buf[f.r:f.w])
	if ok {
		f.r = f.w - len(rest)
	}
	return typ, payload, ok, err
}
