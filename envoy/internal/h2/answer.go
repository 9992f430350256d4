package h2

import (
	"encoding/binary"
	"strconv"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// headerTableSize is the size of the client's table that this side counts on, in bytes: what it is until the client says otherwise.
const headerTableSize = 4096

// table is what the client's table for our header blocks has, RFC 7541, 2.3. Each of the two fields that every answer has is
// put into it once, the content type first, and pointed at from then on; nothing else ever is, so they keep their places.
type table struct {
	unused    bool // nothing is put into it: it is too small
	shrunk    bool // the next block has to say so
	hasType   bool // it has the content type
	hasStatus bool // it has status OK
}

// shrinkTable goes by a client that wants its table smaller: it is not used any more.
func (c *conn) shrinkTable() {
	if !c.table.unused {
		c.table = table{unused: true, shrunk: true}
	}
}

// beginBlock begins a frame with a header block, and says where; endBlock ends it.
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
	putHead(c.out[at:], len(c.out)-at-frameHead, http2.FrameHeaders, flags|http2.FlagHeadersEndHeaders, id)
}

// appendHeaders begins an answer.
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

// appendOK ends an answer well.
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

// appendTrailers ends an answer that has begun with a status.
func (c *conn) appendTrailers(id uint32, status []byte) {
	at := c.beginBlock()
	c.out = append(c.out, status...)
	c.endBlock(at, http2.FlagHeadersEndStream, id)
}

// appendFailure answers with a status alone; more are fields beside it.
func (c *conn) appendFailure(id uint32, http int, code codes.Code, message, more string) {
	at := c.beginBlock()
	if http == 200 {
		c.out = append(c.out, 0x88)
	} else {
		c.out = strconv.AppendInt(append(c.out, "\x08\x03"...), int64(http), 10) // :status, and three digits
	}
	c.appendType()
	c.out = appendStatus(c.out, code, message)
	c.out = append(c.out, more...)
	c.endBlock(at, http2.FlagHeadersEndStream, id)
}

// acceptIdentity is the field that says what is not compressed is understood.
const acceptIdentity = "\x00\x14grpc-accept-encoding\x08identity"

const (
	maxStatusMessage  = 4 << 10              // how much of a status's message is sent, in bytes
	maxEncodedMessage = 3 * maxStatusMessage // and once it is encoded, so that it fits into one frame
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

// appendLength appends an integer with a prefix of 7 bits: RFC 7541, 5.1.
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

// appendPercent encodes a message as gRPC's PROTOCOL-HTTP2 says: all but printable ASCII by %XX, what is not UTF-8 by U+FFFD.
// It appends at most so many bytes, and no part of a character.
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

// appendHead appends a frame's head.
func appendHead(b []byte, n int, t http2.FrameType, f http2.Flags, id uint32) []byte {
	b = append(b, byte(n>>16), byte(n>>8), byte(n), byte(t), byte(f))
	return binary.BigEndian.AppendUint32(b, id)
}

// putHead writes a frame's head.
func putHead(b []byte, n int, t http2.FrameType, f http2.Flags, id uint32) {
	b[0], b[1], b[2], b[3], b[4] = byte(n>>16), byte(n>>8), byte(n), byte(t), byte(f)
	binary.BigEndian.PutUint32(b[5:], id)
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendHead(b, 4, http2.FrameRSTStream, 0, id), uint32(code))
}

func appendWindow(b []byte, id uint32, more int64) []byte {
	return binary.BigEndian.AppendUint32(appendHead(b, 4, http2.FrameWindowUpdate, 0, id), uint32(more))
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode, text string) []byte {
	b = appendHead(b, 8+len(text), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, text...)
}
