package h2

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// headers unpacks header blocks. Clients send the same block again and again, down to the byte; what it says is remembered as
// long as the table has not changed.
type headers struct {
	options *Options
	dec     *hpack.Decoder
	current request // the one being unpacked

	id            uint32 // of a block that has not ended; 0: there is none
	flags         http2.Flags
	frames        int
	block         []byte
	dependsOnSelf bool // the stream depends on itself: RFC 7540, 5.3.1

	cache [cachedBlocks]cachedBlock
	next  int // of known, the one to be forgotten next
}

type cachedBlock struct {
	block   []byte
	request request
}

const (
	cachedBlocks    = 2
	cachedBlockSize = 512     // bytes of a block that is remembered at most
	cachedListSize  = 4 << 10 // and of the list that it unpacks to
)

func (h *headers) init(o *Options) {
	h.options = o
	h.dec = hpack.NewDecoder(headerTableSize, nil)
	h.dec.SetMaxStringLength(o.Limits.HeaderList)
	h.dec.SetEmitFunc(func(f hpack.HeaderField) {
		if !h.current.add(f, o) {
			h.dec.SetEmitEnabled(false) // the table is kept up to date all the same
		}
	})
	h.current.values = make([]string, len(o.Headers))
}

// unpack gives what a block says. The request is valid until the next call.
func (h *headers) unpack(block []byte) (*request, error) {
	for i := range h.cache {
		if k := &h.cache[i]; len(k.block) > 0 && bytes.Equal(k.block, block) {
			return &k.request, nil
		}
	}
	h.current.reset()
	h.dec.SetEmitEnabled(true)
	_, err := h.dec.Write(block)
	if err == nil {
		err = h.dec.Close()
	}
	if err != nil {
		return nil, connError{http2.ErrCodeCompression, err.Error()}
	}
	h.current.validate()
	switch {
	case !keepsTable(block):
		h.cache[0].block, h.cache[1].block = h.cache[0].block[:0], h.cache[1].block[:0]
	case len(block) <= cachedBlockSize && h.current.size <= cachedListSize:
		k := &h.cache[h.next]
		h.next = (h.next + 1) % cachedBlocks
		k.block = append(k.block[:0], block...)
		values := append(k.request.values[:0], h.current.values...)
		k.request = h.current
		k.request.values = values
	}
	return &h.current, nil
}

// forget drops a large list that was unpacked last, which nothing needs any more.
func (h *headers) forget() {
	if h.current.size > cachedListSize {
		h.current.reset()
	}
}

// keepsTable says that a valid block does not change the table: no field is put into it, nor is its size changed. RFC 7541, 6.
func keepsTable(b []byte) bool {
	for len(b) > 0 {
		var n int
		var ok bool
		switch x := b[0]; {
		case x >= 0x80: // a field of the table
			if _, b, ok = integer(b, 7); !ok {
				return false
			}
			continue
		case x >= 0x20: // a field to be put into it, or its size
			return false
		}
		if n, b, ok = integer(b, 4); ok && n == 0 {
			b, ok = skipString(b)
		}
		if ok {
			b, ok = skipString(b)
		}
		if !ok {
			return false
		}
	}
	return true
}

// skipString passes over a string: RFC 7541, 5.2.
func skipString(b []byte) ([]byte, bool) {
	n, b, ok := integer(b, 7)
	return b[min(n, len(b)):], ok
}

// maxIntegerBytes is how many bytes may continue an integer; more are needed by none that is of use.
const maxIntegerBytes = 5

// integer reads an integer whose first byte has so many bits of it: RFC 7541, 5.1. False is one that is longer than
// maxIntegerBytes.
func integer(b []byte, bits uint) (int, []byte, bool) {
	if len(b) == 0 {
		return 0, nil, true
	}
	most := 1<<bits - 1
	n := int(b[0]) & most
	b = b[1:]
	if n < most {
		return n, b, true
	}
	for i := uint(0); len(b) > 0; i++ {
		if i == maxIntegerBytes {
			return 0, b, false
		}
		x := b[0]
		b = b[1:]
		n += int(x&127) << (7 * i)
		if x < 128 {
			break
		}
	}
	return n, b, true
}

// openHeaders takes in HEADERS.
func (c *conn) openHeaders(h http2.FrameHeader, p []byte) error {
	if h.StreamID == 0 {
		return connError{http2.ErrCodeProtocol, "HEADERS of stream 0"}
	}
	if h.Flags.Has(http2.FlagHeadersPadded) {
		var err error
		if p, err = unpad(p); err != nil {
			return err
		}
	}
	if h.Flags.Has(http2.FlagHeadersPriority) {
		if len(p) < 5 {
			return connError{http2.ErrCodeFrameSize, "HEADERS too short for its priority"}
		}
		if binary.BigEndian.Uint32(p)&maxWindow == h.StreamID { // the block is to be unpacked all the same
			c.headers.dependsOnSelf = true
		}
		p = p[5:]
	}
	if h.Flags.Has(http2.FlagHeadersEndHeaders) {
		return c.request(h.StreamID, h.Flags, p)
	}
	f := &c.headers
	f.id, f.flags, f.frames, f.block = h.StreamID, h.Flags, 0, append(f.block[:0], p...)
	return nil
}

// moreHeaders takes in CONTINUATION; the Framer has seen that it belongs where it is.
func (c *conn) moreHeaders(h http2.FrameHeader, p []byte) error {
	f := &c.headers
	b := &c.server.o.Limits
	if f.frames++; f.frames > b.Continuations || len(f.block)+len(p) > b.HeaderList {
		return connError{http2.ErrCodeEnhanceYourCalm, "a header block without end"}
	}
	f.block = append(f.block, p...)
	if !h.Flags.Has(http2.FlagContinuationEndHeaders) {
		return nil
	}
	block, id := f.block, f.id
	f.id = 0
	if f.block = f.block[:0]; cap(f.block) > smallInput {
		f.block = nil
	}
	return c.request(id, f.flags, block)
}

// request opens a stream, or ends its message by trailers.
func (c *conn) request(id uint32, flags http2.Flags, block []byte) error {
	self := c.headers.dependsOnSelf
	c.headers.dependsOnSelf = false
	r, err := c.headers.unpack(block)
	if err != nil {
		return err
	}
	if r.size > cachedListSize {
		c.turns.Spend(r.size / 4)
	}
	defer c.headers.forget()
	ends := flags.Has(http2.FlagHeadersEndStream)
	if k := c.streams[id]; k != nil {
		return c.trailers(k, r, ends)
	}
	if c.closed.has(id) {
		return c.spendControl(1)
	}
	switch {
	case id%2 == 0:
		return connError{http2.ErrCodeProtocol, "a stream of an even number"}
	case id == c.highestStream:
		return connError{http2.ErrCodeStreamClosed, "HEADERS of a stream that has ended"}
	case id < c.highestStream:
		return connError{http2.ErrCodeProtocol, "a stream of a lower number than the last"}
	}
	c.highestStream = id
	if c.drain.refuses(id) {
		return c.spendControl(1) // the client has been told, and asks again elsewhere
	}
	if self {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	return c.open(id, r, ends)
}

// trailers end a message.
func (c *conn) trailers(k *Stream, r *request, ends bool) error {
	switch {
	case k.complete:
		return http2.StreamError{StreamID: k.id, Code: http2.ErrCodeStreamClosed}
	case !ends || r.badTrailers:
		return http2.StreamError{StreamID: k.id, Code: http2.ErrCodeProtocol}
	}
	return c.finishRequest(k)
}

// open begins a call.
func (c *conn) open(id uint32, r *request, ends bool) error {
	v := &r.rejection
	if v.reset != 0 {
		return http2.StreamError{StreamID: id, Code: v.reset}
	}
	if ends && r.length > 0 { // RFC 9113, 8.1.1
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	if len(c.streams)+c.abandoned >= int(c.server.o.Limits.Streams) && (v.http == 0 || v.countsAsCall) {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	if v.http != 0 {
		c.appendFailure(id, v.http, v.code, v.message, v.extraFields)
		if !ends {
			c.out = appendReset(c.out, id, http2.ErrCodeNo)
			c.closed.add(id)
		}
		return c.spendControl(1)
	}
	k := c.newCall(id)
	k.handler, k.timeout, k.length = r.handler, r.timeout, r.length
	k.headerBytes = r.kept
	copy(k.headers, r.values)
	c.streams[id] = k
	c.peakStreams = max(c.peakStreams, len(c.streams))
	if ends {
		return c.finishRequest(k)
	}
	c.charge(k)
	return nil
}
