package peer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/keyward/keyward/ring"
)

// magic opens either direction of a stream, so that a member that reached something else, or was reached by it, knows
// at once.
const magic = "KEYWARDP"

// keyScheme names how questions' keys and owner hashes are made from descriptors. Members that differ in it would count
// one client under two keys, so they refuse each other.
const keyScheme = 1

// The protocol versions that this build speaks.
const (
	minVersion = 1
	maxVersion = 2

	// handoffVersion is the first that carries messages of the hand-over.
	handoffVersion = 2
)

// maxHello bounds a handshake message of any later version.
const maxHello = 4 << 10

// Reasons to refuse a stream.
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
		return "meant for another instance of this member"
	case refusalAlgorithm:
		return "unknown algorithm"
	}
	return fmt.Sprintf("unknown reason %d", uint8(r))
}

// purpose says what a stream is for.
type purpose uint8

const (
	forRequests purpose = 0 // and for messages that are as urgent
	forTransfer purpose = 1 // Chunks and their Ack, which may take their time
)

// versions is a range of protocol versions.
type versions struct{ min, max uint16 }

// common is the highest version in both ranges; 0 if there is none.
func (v versions) common(w versions) uint16 {
	c := min(v.max, w.max)
	if c < v.min || c < w.min {
		return 0
	}
	return c
}

// hello is the asker's first message.
type hello struct {
	versions   versions
	scheme     uint32
	label      [16]byte // digest of the cluster label
	algorithms uint64   // bit set of those its questions may name
	from       ring.ID
	fromBoot   uint64
	to         ring.ID
	toBoot     uint64 // 0: any
	purpose    purpose
}

// welcome is the answer to it.
type welcome struct {
	refusal  refusal
	version  uint16 // chosen; 0 when refused
	versions versions
	bootID   uint64
}

// labelDigest hides a label's text and bounds its length.
func labelDigest(label string) (d [16]byte) {
	sum := sha256.Sum256([]byte("keyward peer label\x00" + label))
	copy(d[:], sum[:])
	return d
}

func appendHello(b []byte, h hello) []byte {
	b, at := beginFrame(append(b, magic...), frameHello)
	b = le.AppendUint16(b, h.versions.min)
	b = le.AppendUint16(b, h.versions.max)
	b = le.AppendUint32(b, h.scheme)
	b = append(b, h.label[:]...)
	b = le.AppendUint64(b, h.algorithms)
	b = le.AppendUint64(b, h.fromBoot)
	b = le.AppendUint64(b, h.toBoot)
	b = append(append(b, byte(len(h.from))), h.from...)
	b = append(append(b, byte(len(h.to))), h.to...)
	if h.purpose != forRequests {
		b = append(b, byte(h.purpose))
	}
	endFrame(b, at)
	return b
}

// parseHello reads a payload; what a later version appends is skipped.
func parseHello(b []byte) (h hello, err error) {
	const fixed = 48
	if len(b) < fixed {
		return h, errShort
	}
	h.versions = versions{le.Uint16(b), le.Uint16(b[2:])}
	h.scheme = le.Uint32(b[4:])
	copy(h.label[:], b[8:])
	h.algorithms = le.Uint64(b[24:])
	h.fromBoot = le.Uint64(b[32:])
	h.toBoot = le.Uint64(b[40:])
	b = b[fixed:]
	if h.from, b, err = parseID(b); err != nil {
		return h, err
	}
	if h.from == "" {
		return h, errors.New("no sender")
	}
	if h.to, b, err = parseID(b); err == nil && len(b) > 0 {
		h.purpose = purpose(b[0])
	}
	return h, err
}

func parseID(b []byte) (ring.ID, []byte, error) {
	if len(b) < 1 || len(b) < 1+int(b[0]) {
		return "", nil, errShort
	}
	n := int(b[0])
	if n > maxID {
		return "", nil, fmt.Errorf("member name of %d bytes", n)
	}
	return ring.ID(b[1 : 1+n]), b[1+n:], nil
}

func appendWelcome(b []byte, w welcome) []byte {
	b, at := beginFrame(append(b, magic...), frameWelcome)
	b = append(b, byte(w.refusal), 0)
	b = le.AppendUint16(b, w.version)
	b = le.AppendUint16(b, w.versions.min)
	b = le.AppendUint16(b, w.versions.max)
	b = le.AppendUint64(b, w.bootID)
	endFrame(b, at)
	return b
}

func parseWelcome(b []byte) (w welcome, err error) {
	if len(b) < 16 {
		return w, errShort
	}
	return welcome{
		refusal:  refusal(b[0]),
		version:  le.Uint16(b[2:]),
		versions: versions{le.Uint16(b[4:]), le.Uint16(b[6:])},
		bootID:   le.Uint64(b[8:]),
	}, nil
}

// readHandshake reads the magic and the one frame behind it, and not a byte more.
func readHandshake(r io.Reader, want byte) ([]byte, error) {
	var head [len(magic) + frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if string(head[:len(magic)]) != magic {
		return nil, errors.New("not the peer protocol")
	}
	n := le.Uint32(head[len(magic):])
	if n < 1 || n > maxHello {
		return nil, fmt.Errorf("%w: handshake of %d bytes", errTooLong, n)
	}
	if typ := head[len(head)-1]; typ != want {
		return nil, fmt.Errorf("frame type %d instead of the handshake", typ)
	}
	payload := make([]byte, n-1)
	_, err := io.ReadFull(r, payload)
	return payload, err
}
