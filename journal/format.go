package journal

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

// The format of segments, which FORMAT.md describes.
const (
	// MaxPayload is the maximum length of a payload in bytes.
	MaxPayload = 1 << 20

	version  = 1
	page     = 4096
	headSize = 32 // bytes of a block before its payload
	maxRing  = math.MaxUint16
	maxName  = math.MaxUint16
	maxBlock = (headSize + MaxPayload + page - 1) / page * page // bytes of the longest block
	lockName = "LOCK"
)

// magic is the start of every block.
var magic = [4]byte{'K', 'W', 'J', 'B'}

// kind is the purpose of a block.
type kind uint8

// The kinds of blocks.
const (
	kindHeader kind = 1 // describes the segment
	kindData   kind = 2 // holds a caller's payload
	kindEnd    kind = 3 // everything that the boot had to write when the generation began precedes it
	kindClean  kind = 4 // the boot has stopped in good order; nothing follows
)

// RingMember is one boot of a member on a ring.
type RingMember struct {
	Name string
	Boot uint64
}

// Header describes a segment and the boot that wrote it.
type Header struct {
	Scheme          uint32 // Options.Scheme
	Member          string
	Boot            uint64
	Generation      uint32
	Segment         uint32       // number of the segment in its generation, from 0
	First           uint64       // sequence of the segment's first block after the header
	GenerationFirst uint64       // sequence of the generation's first block after its first header
	Created         time.Time    // the time that Begin was called with
	Ring            []RingMember // the ring that Begin was called with
	label           uint64       // digest of the cluster's label
}

// blockHead is the decoded head of a block.
type blockHead struct {
	kind     kind
	length   uint32
	sum      uint32
	sequence uint64
	salt     uint64
}

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// pages returns n, rounded up to a multiple of 4 KiB.
func pages(n int64) int64 { return (n + page - 1) / page * page }

// labelDigest returns the first 8 bytes of the SHA-256 of a label as a big-endian number.
func labelDigest(label string) uint64 {
	sum := sha256.Sum256([]byte(label))
	return binary.BigEndian.Uint64(sum[:])
}

// idName returns the name of the directory of a label or a boot.
func idName(id uint64) string { return fmt.Sprintf("%016x", id) }

// parseID returns the number of which idName returns the name.
func parseID(name string) (uint64, bool) {
	var id uint64
	n, err := fmt.Sscanf(name, "%x", &id)
	return id, err == nil && n == 1 && idName(id) == name
}

// segmentName returns the name of a segment's file.
func segmentName(generation, segment uint32) string {
	return fmt.Sprintf("%08x-%08x.seg", generation, segment)
}

// parseSegment returns the numbers of which segmentName returns the name.
func parseSegment(name string) (generation, segment uint32, ok bool) {
	n, err := fmt.Sscanf(name, "%08x-%08x.seg", &generation, &segment)
	return generation, segment, err == nil && n == 2 && segmentName(generation, segment) == name
}

// sealBlock writes the head of the block in b, of which b[headSize:headSize+length] is the payload.
func sealBlock(b []byte, k kind, length int, sequence, salt uint64) {
	copy(b, magic[:])
	le.PutUint32(b[4:], uint32(k))
	le.PutUint32(b[8:], uint32(length))
	le.PutUint64(b[16:], sequence)
	le.PutUint64(b[24:], salt)
	le.PutUint32(b[12:], checksum(b[:headSize+length]))
}

// checksum returns the CRC32C of a block's head and payload, without the four bytes of the checksum itself.
func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[16:])
}

// hasMagic reports whether b begins as a block does.
func hasMagic(b []byte) bool { return len(b) >= headSize && [4]byte(b) == magic }

// parseHead decodes the head of a block, of which hasMagic was true.
func parseHead(b []byte) blockHead {
	h := blockHead{
		length: le.Uint32(b[8:]), sum: le.Uint32(b[12:]), sequence: le.Uint64(b[16:]), salt: le.Uint64(b[24:]),
	}
	if k := le.Uint32(b[4:]); k <= uint32(kindClean) {
		h.kind = kind(k)
	}
	return h
}

// appendHeader appends the payload of a header block.
func appendHeader(b []byte, h *Header) ([]byte, error) {
	if len(h.Ring) > maxRing || len(h.Member) > maxName {
		return b, fmt.Errorf("header: %w", ErrTooLarge)
	}
	b = le.AppendUint32(b, version)
	b = le.AppendUint32(b, h.Scheme)
	b = le.AppendUint64(b, h.label)
	b = le.AppendUint64(b, h.Boot)
	b = le.AppendUint32(b, h.Generation)
	b = le.AppendUint32(b, h.Segment)
	b = le.AppendUint64(b, h.First)
	b = le.AppendUint64(b, h.GenerationFirst)
	b = le.AppendUint64(b, uint64(h.Created.UnixNano()))
	b = appendName(b, h.Member)
	b = le.AppendUint16(b, uint16(len(h.Ring)))
	for _, m := range h.Ring {
		if len(m.Name) > maxName {
			return b, fmt.Errorf("header: %w", ErrTooLarge)
		}
		b = le.AppendUint64(appendName(b, m.Name), m.Boot)
	}
	return b, nil
}

func appendName(b []byte, name string) []byte {
	return append(le.AppendUint16(b, uint16(len(name))), name...)
}

// The lengths of parts of a header's payload in bytes.
const (
	headerFixed   = 56    // before the member's name
	minRingMember = 2 + 8 // of a member of the ring
)

var (
	errVersion   = errors.New("unknown format version")
	errMalformed = errors.New("malformed header")
)

// parseHeader decodes the payload of a header block.
func parseHeader(b []byte) (h Header, err error) {
	if len(b) < 4 || le.Uint32(b) != version {
		return h, errVersion
	}
	if len(b) < headerFixed {
		return h, errMalformed
	}
	h = Header{
		Scheme: le.Uint32(b[4:]), label: le.Uint64(b[8:]), Boot: le.Uint64(b[16:]),
		Generation: le.Uint32(b[24:]), Segment: le.Uint32(b[28:]),
		First: le.Uint64(b[32:]), GenerationFirst: le.Uint64(b[40:]),
		Created: time.Unix(0, int64(le.Uint64(b[48:]))),
	}
	var ok bool
	if h.Member, b, ok = cutName(b[headerFixed:]); !ok || len(b) < 2 {
		return h, errMalformed
	}
	n := int(le.Uint16(b))
	if b = b[2:]; len(b) < n*minRingMember {
		return h, errMalformed
	}
	h.Ring = make([]RingMember, 0, n)
	for range n {
		var m RingMember
		if m.Name, b, ok = cutName(b); !ok || len(b) < 8 {
			return h, errMalformed
		}
		m.Boot, b = le.Uint64(b), b[8:]
		h.Ring = append(h.Ring, m)
	}
	return h, nil
}

// cutName decodes a name with its length and returns the rest.
func cutName(b []byte) (name string, rest []byte, ok bool) {
	if len(b) < 2 || len(b) < 2+int(le.Uint16(b)) {
		return "", nil, false
	}
	n := 2 + int(le.Uint16(b))
	return string(b[2:n]), b[n:], true
}
