package peer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

// magic is sent first in both directions, so that both ends detect another protocol at once.
const magic = "KEYWARDP"

// KeyScheme is the version of how keys and ring positions are derived from descriptors. Members with different schemes
// would count one client under two keys, so they refuse each other.
const KeyScheme = 1

// The protocol versions that this build speaks.
const (
	minVersion = membership.ProtocolMin
	maxVersion = membership.ProtocolMax

	handoffVersion = membership.ProtocolHandoff
)

// maxHello bounds a handshake message of any later version.
const maxHello = 4 << 10

// refusal is a reason to refuse a stream.
type refusal uint8

const (
	refusalNone      refusal = 0
	refusalVersion   refusal = 1
	refusalCluster   refusal = 2
	refusalScheme    refusal = 3
	refusalTarget    refusal = 4
	refusalBoot      refusal = 5
	refusalAlgorithm refusal = 6
)

func (r refusal) String() string {
	switch r {
	case refusalNone:
		return "accepted"
	case refusalVersion:
		return "no common protocol version"
	case refusalCluster:
		return "another cluster label"
	case refusalScheme:
		return "another key scheme"
	case refusalTarget:
		return "meant for another member"
	case refusalBoot:
		return "meant for another boot of this member"
	case refusalAlgorithm:
		return "unknown algorithm"
	}
	return fmt.Sprintf("unknown reason %d", uint8(r))
}

// purpose distinguishes the two kinds of streams.
type purpose uint8

const (
	forRequests purpose = 0 // also for urgent messages
	forTransfer purpose = 1 // chunks and their ack
)

// versions is a range of protocol versions.
type versions struct{ min, max uint16 }

// common returns the highest version in both ranges, or 0 if there is none.
func (v versions) common(w versions) uint16 {
	c := min(v.max, w.max)
	if c < v.min || c < w.min {
		return 0
	}
	return c
}

// hello is the requester's first message.
type hello struct {
	versions   versions
	scheme     uint32
	label      [16]byte // digest of the cluster label
	algorithms uint64   // bit set of the algorithms that its requests may use
	from       ring.ID
	fromBoot   uint64
	to         ring.ID
	toBoot     uint64 // 0: any
	purpose    purpose
}

// welcome is the reply to a hello.
type welcome struct {
	refusal  refusal
	version  uint16 // chosen; 0 if refused
	versions versions
	bootID   uint64
}

// labelDigest returns a digest of the label, which hides its text and bounds its length.
func labelDigest(label string) (d [16]byte) {
	sum := sha256.Sum256([]byte("keyward peer label\x00" + label))
	copy(d[:], sum[:])
	return d
}

func appendHello(b []byte, h hello) []byte {
	w, at := beginFrame(append(b, magic...), frameHello)
	w = w.U16(h.versions.min).U16(h.versions.max).U32(h.scheme)
	w = append(w, h.label[:]...)
	w = w.U64(h.algorithms).U64(h.fromBoot).U64(h.toBoot)
	w = appendID(w, h.from)
	w = appendID(w, h.to)
	if h.purpose != forRequests {
		w = w.U8(byte(h.purpose))
	}
	w.EndLen32(at)
	return w
}

// parseHello reads a payload. Fields that a later version appends are skipped.
func parseHello(b []byte) (h hello, err error) {
	r := wire.NewReader(b)
	h.versions = versions{r.U16(), r.U16()}
	h.scheme = r.U32()
	copy(h.label[:], r.Bytes(len(h.label)))
	h.algorithms, h.fromBoot, h.toBoot = r.U64(), r.U64(), r.U64()
	h.from = readID(&r)
	if r.Err() == nil && h.from == "" {
		return h, errors.New("no sender")
	}
	h.to = readID(&r)
	if r.Len() > 0 {
		h.purpose = purpose(r.U8())
	}
	return h, r.Err()
}

func appendWelcome(b []byte, m welcome) []byte {
	w, at := beginFrame(append(b, magic...), frameWelcome)
	w = w.U8(byte(m.refusal)).U8(0).U16(m.version).U16(m.versions.min).U16(m.versions.max).U64(m.bootID)
	w.EndLen32(at)
	return w
}

func parseWelcome(b []byte) (m welcome, err error) {
	r := wire.NewReader(b)
	m.refusal = refusal(r.U8())
	r.U8() // reserved
	m.version = r.U16()
	m.versions = versions{r.U16(), r.U16()}
	m.bootID = r.U64()
	return m, r.Err()
}

// readHandshake reads the magic and the one frame behind it, and no further byte.
func readHandshake(src io.Reader, want byte) ([]byte, error) {
	var head [len(magic) + frameHead]byte
	if _, err := io.ReadFull(src, head[:]); err != nil {
		return nil, err
	}
	r := wire.NewReader(head[:])
	if string(r.Bytes(len(magic))) != magic {
		return nil, errors.New("not the peer protocol")
	}
	n := r.U32()
	if n < 1 || n > maxHello {
		return nil, fmt.Errorf("%w: handshake of %d bytes", errTooLong, n)
	}
	if typ := r.U8(); typ != want {
		return nil, fmt.Errorf("frame type %d instead of the handshake", typ)
	}
	payload := make([]byte, n-1)
	_, err := io.ReadFull(src, payload)
	return payload, err
}
