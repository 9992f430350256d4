package connguard

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	frameHead = 9 // bytes of a frame header
	codeEnd   = 8 // bytes of a GOAWAY payload up to the end of its error code; RST_STREAM has half
)

// frame is the beginning of an HTTP/2 frame: its header, and its error code if it has one.
type frame struct {
	part [frameHead + codeEnd]byte
	have int // bytes of part that are set
}

func (f *frame) length() int          { return int(f.part[0])<<16 | int(f.part[1])<<8 | int(f.part[2]) }
func (f *frame) typ() http2.FrameType { return http2.FrameType(f.part[3]) }
func (f *frame) stream() uint32       { return binary.BigEndian.Uint32(f.part[5:]) & (1<<31 - 1) }

// ends reports whether the frame is the last that its sender sends on its stream.
func (f *frame) ends() bool {
	return (f.typ() == http2.FrameData || f.typ() == http2.FrameHeaders) &&
		http2.Flags(f.part[4]).Has(http2.FlagDataEndStream)
}

// code returns the error code, or http2.ErrCodeNo if the frame has none.
func (f *frame) code() http2.ErrCode {
	if f.codeEnd() == 0 {
		return http2.ErrCodeNo
	}
	return http2.ErrCode(binary.BigEndian.Uint32(f.part[f.have-4:]))
}

// codeEnd returns the offset in the payload after the error code, or 0 if the frame has none.
func (f *frame) codeEnd() int {
	switch f.typ() {
	case http2.FrameRSTStream:
		return min(codeEnd/2, f.length())
	case http2.FrameGoAway:
		return min(codeEnd, f.length())
	}
	return 0
}

// need returns the number of bytes of part that must be read, if they are known yet.
func (f *frame) need() int {
	if f.have < frameHead {
		return frameHead
	}
	return frameHead + f.codeEnd()
}

// frames finds the frames of a stream that arrives in pieces of any size.
type frames struct {
	frame
	skip int // bytes of payload to skip
	all  int // length in bytes of the frame that they belong to
	n    int // frames found so far
}

// rest returns the number of bytes that have been read of an incomplete frame, or 0.
func (h *frames) rest() int {
	if h.skip > 0 {
		return h.all - h.skip
	}
	return h.have
}

// number returns the number of the incomplete frame.
func (h *frames) number() int {
	if h.skip > 0 {
		return h.n
	}
	return h.n + 1
}

// scan calls found for each frame when its beginning has been read.
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
