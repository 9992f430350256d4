package module

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/dchest/siphash"

	"github.com/keyward/keyward/envoy/internal/wire"
	"github.com/keyward/keyward/internal/config"
)

// Kinds of messages.
const (
	kindHello    = 1
	kindSegment  = 2
	kindInterest = 3
)

const (
	protocolVersion = 1
	segmentVersion  = 1

	// MaxMessage is the length of the longest message in bytes.
	MaxMessage = 16 << 10

	maxHelloText = 256 // bytes of each string in a HELLO
	maxEntries   = 64  // of a descriptor
)

var (
	errMalformed = errors.New("malformed message")
	errVersion   = errors.New("unknown version of the protocol")
)

// decodeHello decodes a HELLO.
func decodeHello(b []byte) (h Hello, err error) {
	if len(b) < 2 || len(b) > MaxMessage || b[0] != kindHello {
		return h, errMalformed
	}
	if b[1] != protocolVersion {
		return h, errVersion
	}
	node, b, ok1 := cutText(b[2:])
	abi, b, ok2 := cutText(b)
	if !ok1 || !ok2 || len(b) > 0 || len(node) > maxHelloText || len(abi) > maxHelloText {
		return h, errMalformed
	}
	return Hello{Node: string(node), ABI: string(abi)}, nil
}

// decode decodes an INTEREST. The strings of i share the memory of b.
func (i *Interest) decode(b []byte) error {
	if len(b) < 8 || len(b) > MaxMessage || b[0] != kindInterest || b[1] != 0 {
		return errMalformed
	}
	n := int(binary.LittleEndian.Uint16(b[2:]))
	i.Hits = binary.LittleEndian.Uint32(b[4:])
	domain, b, ok := cutText(b[8:])
	if !ok || n == 0 || n > maxEntries {
		return errMalformed
	}
	i.Domain, i.Entries = wire.Text(domain), i.Entries[:0]
	for range n {
		var k, v []byte
		var ok1, ok2 bool
		k, b, ok1 = cutText(b)
		v, b, ok2 = cutText(b)
		if !ok1 || !ok2 {
			return errMalformed
		}
		i.Entries = append(i.Entries, config.Entry{Key: wire.Text(k), Value: wire.Text(v)})
	}
	if len(b) > 0 {
		return errMalformed
	}
	return nil
}

// cutText cuts a string off b.
func cutText(b []byte) (text, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.LittleEndian.Uint16(b))
	if len(b) < 2+n {
		return nil, nil, false
	}
	return b[2 : 2+n], b[2+n:], true
}

// encodeSegment returns the SEGMENT message of a segment.
func encodeSegment(slots uint32) []byte {
	b := []byte{kindSegment, segmentVersion, 0, 0}
	b = binary.LittleEndian.AppendUint32(b, slots)
	return binary.LittleEndian.AppendUint64(b, uint64(segmentSize(slots)))
}

// AppendKey appends the bytes of which a descriptor's fingerprint is made. Different descriptors have different bytes. ok
// is false if a string is too long for the protocol.
func AppendKey(b []byte, domain string, entries []config.Entry) (_ []byte, ok bool) {
	if len(domain) > math.MaxUint16 || len(entries) > maxEntries {
		return b, false
	}
	b = appendText(b, domain)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(entries)))
	for i := range entries {
		e := &entries[i]
		if len(e.Key) > math.MaxUint16 || len(e.Value) > math.MaxUint16 {
			return b, false
		}
		b = appendText(appendText(b, e.Key), e.Value)
	}
	return b, true
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}

// fingerprint returns the SipHash-2-4-128 of a key.
func fingerprint(k0, k1 uint64, key []byte) (f Fingerprint) {
	f.Lo, f.Hi = siphash.Hash128(k0, k1, key)
	return f
}
