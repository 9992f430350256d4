package h2

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// headers decodes header blocks. Clients send identical blocks again and again, so decoded blocks are cached until
// the header table changes.
type headers struct {
	options *Options
	dec     *hpack.Decoder
	current request // the request being decoded

	id            uint32 // stream of a block that has not ended; 0: none
	flags         http2.Flags
	frames        int
	block         []byte
	dependsOnSelf bool // RFC 7540, 5.3.1

	cache [cachedBlocks]cachedBlock
	next  int // index in cache of the block to replace next
}

type cachedBlock struct {
	block   []byte
	request request
}

const (
	cachedBlocks    = 2
	cachedBlockSize = 512     // largest block in bytes that is cached
	cachedListSize  = 4 << 10 // largest decoded header list in bytes that is cached
)

func (h *headers) init(o *Options) {
	h.options = o
	h.dec = hpack.NewDecoder(headerTableSize, nil)
	h.dec.SetMaxStringLength(o.Limits.HeaderList)
	h.dec.SetEmitFunc(func(f hpack.HeaderField) {
		if !h.current.add(f, o) {
			h.dec.SetEmitEnabled(false) // the table is still updated
		}
	})
	h.current.values = make([]string, len(o.Headers))
}

// unpack decodes a block. The request is valid until the next call.
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

// forget releases a large header list that was decoded last.
func (h *headers) forget() {
	if h.current.size > cachedListSize {
		h.current.reset()
	}
}

// keepsTable reports whether a valid block leaves the header table unchanged: RFC 7541, 6.
func keepsTable(b []byte) bool {
	for len(b) > 0 {
		var n int
		var ok bool
		switch x := b[0]; {
		case x >= 0x80: // an indexed field
			if _, b, ok = integer(b, 7); !ok {
				return false
			}
			continue
		case x >= 0x20: // a field that is added to the table, or a new table size
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

// skipString skips a string: RFC 7541, 5.2.
func skipString(b []byte) ([]byte, bool) {
	n, b, ok := integer(b, 7)
	return b[min(n, len(b)):], ok
}

// maxIntegerBytes is the largest number of continuation bytes of an integer; no useful integer has more.
const maxIntegerBytes = 5

// integer decodes an integer whose first byte contains the given number of its bits: RFC 7541, 5.1. It returns false
// if the integer has more than maxIntegerBytes continuation bytes.
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

// openHeaders processes HEADERS.
func (c *conn) openHeaders(h http2.FrameHeader, p []byte) error {
	if h.StreamID == 0 {
		return connError{http2.ErrCodeProtocol, "HEADERS on stream 0"}
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
		if binary.BigEndian.Uint32(p)&maxWindow == h.StreamID { // the block must be decoded nevertheless
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

// moreHeaders processes CONTINUATION. The Framer has checked that it follows HEADERS of its stream.
func (c *conn) moreHeaders(h http2.FrameHeader, p []byte) error {
	f := &c.headers
	b := &c.server.o.Limits
	if f.frames++; f.frames > b.Continuations || len(f.block)+len(p) > b.HeaderList {
		return connError{http2.ErrCodeEnhanceYourCalm, "endless header block"}
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

// request opens a stream, or ends its message with trailers.
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
		return connError{http2.ErrCodeProtocol, "even stream number"}
	case id == c.highestStream:
		return connError{http2.ErrCodeStreamClosed, "HEADERS on a closed stream"}
	case id < c.highestStream:
		return connError{http2.ErrCodeProtocol, "stream number lower than an earlier one"}
	}
	c.highestStream = id
	if c.drain.refuses(id) {
		return c.spendControl(1) // the client knows from GOAWAY to retry elsewhere
	}
	if self {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	return c.open(id, r, ends)
}

// trailers end the message of a call.
func (c *conn) trailers(k *Stream, r *request, ends bool) error {
	switch {
	case k.complete:
		return http2.StreamError{StreamID: k.id, Code: http2.ErrCodeStreamClosed}
	case !ends || r.badTrailers:
		return http2.StreamError{StreamID: k.id, Code: http2.ErrCodeProtocol}
	}
	if k.duplex != nil {
		return c.endDuplexInput(k)
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
		c.appendFailure(id, v)
		if !ends {
			c.out = appendReset(c.out, id, http2.ErrCodeNo)
			c.closed.add(id)
		}
		return c.spendControl(1)
	}
	k := c.newCall(id)
	k.handler, k.timeout, k.length = r.handler, r.timeout, r.length
	k.gzip = r.encoding == encodingGzip
	k.headerBytes = r.kept
	copy(k.headers, r.values)
	c.streams[id] = k
	c.peakStreams = max(c.peakStreams, len(c.streams))
	if r.duplex != nil {
		return c.openDuplex(k, r.duplex, ends)
	}
	if ends {
		return c.finishRequest(k)
	}
	c.charge(k)
	return nil
}
