package connguard

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	frameHead = 9 // bytes of an HTTP/2 frame's head
	codeEnd   = 8 // bytes of a GOAWAY's payload up to the end of its code; a RST_STREAM's has half
)

// frame is the beginning of an HTTP/2 frame: its head, and an error code where it has one.
type frame struct {
	part [frameHead + codeEnd]byte
	have int // bytes of it so far
}

func (f *frame) length() int          { return int(f.part[0])<<16 | int(f.part[1])<<8 | int(f.part[2]) }
func (f *frame) typ() http2.FrameType { return http2.FrameType(f.part[3]) }
func (f *frame) stream() uint32       { return binary.BigEndian.Uint32(f.part[5:]) & (1<<31 - 1) }

// ends says whether its sender sends nothing more on its stream.
func (f *frame) ends() bool {
	return (f.typ() == http2.FrameData || f.typ() == http2.FrameHeaders) && http2.Flags(f.part[4]).Has(http2.FlagDataEndStream)
}

// code is its error code; that of no error where it has none.
func (f *frame) code() http2.ErrCode {
	if f.codeEnd() == 0 {
		return http2.ErrCodeNo
	}
	return http2.ErrCode(binary.BigEndian.Uint32(f.part[f.have-4:]))
}

// codeEnd is where in its payload its error code ends; 0 when it has none.
func (f *frame) codeEnd() int {
	switch f.typ() {
	case http2.FrameRSTStream:
		return min(codeEnd/2, f.length())
	case http2.FrameGoAway:
		return min(codeEnd, f.length())
	}
	return 0
}

// need is how much of it has to be seen, as far as is known.
func (f *frame) need() int {
	if f.have < frameHead {
		return frameHead
	}
	return frameHead + f.codeEnd()
}

// frames finds the frames in a stream that comes in pieces of any size.
type frames struct {
	frame
	skip int // bytes of payload to pass over
	all  int // bytes of the frame that they end
	n    int // frames found so far
}

// rest is how many bytes there are of a frame that is not whole; 0 when there is none.
func (h *frames) rest() int {
	if h.skip > 0 {
		return h.all - h.skip
	}
	return h.have
}

// number is that of the frame that is not whole.
func (h *frames) number() int {
	if h.skip > 0 {
		return h.n
	}
	return h.n + 1
}

// scan calls found for each frame, once its beginning is there.
func (h *frames) scan(b []byte, found func(*frame)) {
	for len(b) > 0 {
		if h.skip > 0 {
			n := min(h.skip, len(b))
			h.skip -= n
			b = b[n:]
			continue
		}
		n := copy(h.part[h.have:h.need()], b)
		h.have += n
		b = b[n:]
		if h.have < frameHead || h.have < h.need() {
			continue
		}
		found(&h.frame)
		h.all = h.length() + frameHead
		h.skip, h.have = h.all-h.have, 0
		h.n++
	}
}
