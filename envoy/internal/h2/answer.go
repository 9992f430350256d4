package h2

import (
	"encoding/binary"
	"strconv"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// headerTableSize is the size of the client's header table in bytes, until the client changes it.
const headerTableSize = 4096

// table describes the client's table for our header blocks: RFC 7541, 2.3. Each of the two fields that every response
// has is added to it once, the content type first, and referenced from then on. Nothing else is added, so their
// indexes do not change.
type table struct {
	unused    bool // the client's table is too small
	shrunk    bool // the next block must announce the new size
	hasType   bool // it contains the content type
	hasStatus bool // it contains status OK
}

// shrinkTable stops using the table of a client that makes it smaller.
func (c *conn) shrinkTable() {
	if !c.table.unused {
		c.table = table{unused: true, shrunk: true}
	}
}

// beginBlock begins a frame with a header block and returns its offset. endBlock completes it.
func (c *conn) beginBlock() int {
	at := len(c.out)
	c.out = append(c.out, zeros[:frameHead]...)
	if c.table.shrunk {
		c.table.shrunk = false
		c.out = append(c.out, 0x20) // a table of size 0: RFC 7541, 6.3
	}
	return at
}

func (c *conn) endBlock(at int, flags http2.Flags, id uint32) {
	putHead(c.out[at:], len(c.out)-at-frameHead, frameKind{http2.FrameHeaders, flags | http2.FlagHeadersEndHeaders}, id)
}

// appendHeaders begins a response.
func (c *conn) appendHeaders(id uint32) {
	at := c.beginBlock()
	c.out = append(c.out, 0x88) // :status: 200
	c.appendType()
	c.endBlock(at, 0, id)
}

func (c *conn) appendType() {
	switch {
	case c.table.unused:
		c.out = append(c.out, "\x0f\x10\x10application/grpc"...)
	case !c.table.hasType:
		c.table.hasType = true
		c.out = append(c.out, "\x5f\x10application/grpc"...)
	case c.table.hasStatus:
		c.out = append(c.out, 0x80|63)
	default:
		c.out = append(c.out, 0x80|62)
	}
}

// appendOK ends a response with status OK.
func (c *conn) appendOK(id uint32) {
	at := c.beginBlock()
	switch {
	case c.table.unused:
		c.out = append(c.out, "\x00\x0bgrpc-status\x010"...)
	case !c.table.hasStatus:
		c.table.hasStatus = true
		c.out = append(c.out, "\x40\x0bgrpc-status\x010"...)
	default:
		c.out = append(c.out, 0x80|62)
	}
	c.endBlock(at, http2.FlagHeadersEndStream, id)
}

// appendTrailers ends a response that has begun with the given status.
func (c *conn) appendTrailers(id uint32, status []byte) {
	at := c.beginBlock()
	c.out = append(c.out, status...)
	c.endBlock(at, http2.FlagHeadersEndStream, id)
}

// appendFailure answers a call with only a status.
func (c *conn) appendFailure(id uint32, r *rejection) {
	at := c.beginBlock()
	if r.http == 200 {
		c.out = append(c.out, 0x88)
	} else {
		c.out = strconv.AppendInt(append(c.out, "\x08\x03"...), int64(r.http), 10) // :status and three digits
	}
	c.appendType()
	c.out = appendStatus(c.out, r.code, r.message)
	c.out = append(c.out, r.extraFields...)
	c.endBlock(at, http2.FlagHeadersEndStream, id)
}

// acceptEncodings is the encoded field grpc-accept-encoding: identity,gzip.
const acceptEncodings = "\x00\x14grpc-accept-encoding\x0didentity,gzip"

const (
	maxStatusMessage  = 4 << 10              // bytes of a status message that are sent
	maxEncodedMessage = 3 * maxStatusMessage // bytes of it once encoded, so that it fits into one frame
)

// appendStatus appends the fields of a status.
func appendStatus(b []byte, code codes.Code, message string) []byte {
	b = append(b, "\x00\x0bgrpc-status"...)
	digits := strconv.Itoa(int(code))
	b = append(append(b, byte(len(digits))), digits...)
	b = append(b, "\x00\x0cgrpc-message"...)
	text := appendPercent(nil, cut(message, maxStatusMessage), maxEncodedMessage)
	b = appendLength(b, len(text))
	return append(b, text...)
}

// appendLength appends an integer with a 7-bit prefix: RFC 7541, 5.1.
func appendLength(b []byte, n int) []byte {
	if n < 127 {
		return append(b, byte(n))
	}
	b, n = append(b, 127), n-127
	for ; n >= 128; n >>= 7 {
		b = append(b, byte(n)|128)
	}
	return append(b, byte(n))
}

// appendPercent appends s in gRPC's percent-encoding: everything except printable ASCII as %XX, and invalid UTF-8 as
// U+FFFD. It appends at most most bytes and never part of a character.
func appendPercent(b []byte, s string, most int) []byte {
	const hex = "0123456789ABCDEF"
	for most += len(b); len(s) > 0; {
		r, n := utf8.DecodeRuneInString(s)
		if r >= ' ' && r <= '~' && r != '%' {
			if len(b) == most {
				break
			}
			b = append(b, byte(r))
		} else {
			if len(b)+3*utf8.RuneLen(r) > most {
				break
			}
			for _, x := range utf8.AppendRune(nil, r) {
				b = append(b, '%', hex[x>>4], hex[x&15])
			}
		}
		s = s[n:]
	}
	return b
}

// frameKind is the type of a frame and its flags.
type frameKind struct {
	typ   http2.FrameType
	flags http2.Flags
}

// appendHead appends the header of a frame with n bytes of payload.
func appendHead(b []byte, n int, k frameKind, id uint32) []byte {
	b = append(b, byte(n>>16), byte(n>>8), byte(n), byte(k.typ), byte(k.flags))
	return binary.BigEndian.AppendUint32(b, id)
}

// putHead writes the header of a frame with n bytes of payload.
func putHead(b []byte, n int, k frameKind, id uint32) {
	b[0], b[1], b[2], b[3], b[4] = byte(n>>16), byte(n>>8), byte(n), byte(k.typ), byte(k.flags)
	binary.BigEndian.PutUint32(b[5:], id)
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendHead(b, 4, frameKind{http2.FrameRSTStream, 0}, id), uint32(code))
}

func appendWindow(b []byte, id uint32, more int64) []byte {
	return binary.BigEndian.AppendUint32(appendHead(b, 4, frameKind{http2.FrameWindowUpdate, 0}, id), uint32(more))
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode, text string) []byte {
	b = appendHead(b, 8+len(text), frameKind{http2.FrameGoAway, 0}, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, text...)
}
