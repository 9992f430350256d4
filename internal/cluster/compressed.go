package cluster

import (
	"encoding/binary"
	"errors"
)

// The first bytes of memberlist's messages. Members without a key must reject compressed messages unread
// (docs/security.md promises it): any host could send them, and memberlist decompresses up to 40 MiB of each.
// Memberlist has no such option, so the few types are parsed here.
const (
	typeCompound   = 7 // u8 count, u16 length of each, the messages
	typeCompressed = 9
	typeChecked    = 12  // u32 checksum, a message
	typeLabeled    = 244 // u8 length, label, a message
)

const refusedCompressed = "compressed"

var errCompressed = errors.New("compressed, without a key")

// isCompressed reports whether a message, or one in it, is compressed, or nested deeper than depth.
func isCompressed(b []byte, depth int) bool {
	if len(b) == 0 || depth == 0 {
		return len(b) > 0
	}
	switch b[0] {
	case typeCompressed:
		return true
	case typeChecked:
		return isCompressed(b[min(5, len(b)):], depth-1)
	case typeLabeled:
		if len(b) > 1 {
			return isCompressed(b[min(2+int(b[1]), len(b)):], depth-1)
		}
	case typeCompound:
		return compoundCompressed(b[1:], depth-1)
	}
	return false
}

func compoundCompressed(b []byte, depth int) bool {
	if len(b) == 0 || len(b) < 1+2*int(b[0]) {
		return false
	}
	n := int(b[0])
	lengths, rest := b[1:1+2*n], b[1+2*n:]
	for i := range n {
		part := min(int(binary.BigEndian.Uint16(lengths[2*i:])), len(rest))
		if isCompressed(rest[:part], depth) {
			return true
		}
		rest = rest[part:]
	}
	return false
}

// streamPrefix parses the beginning of a stream, a label and the type of a message, in pieces of any size.
type streamPrefix struct {
	refused func(reason string)
	at      int // bytes seen; -1: the type has been seen
	label   int // bytes of the label with its header
}

// isCompressed processes the next bytes and reports whether they show that the stream is compressed.
func (o *streamPrefix) isCompressed(b []byte) bool {
	for _, c := range b {
		switch {
		case o.at < 0:
			return false
		case o.at == 0 && c == typeLabeled:
			o.label = 2
		case o.at == 1 && o.label == 2:
			o.label += int(c)
		case o.at >= o.label:
			o.at = -1
			if c == typeCompressed {
				o.refused(refusedCompressed)
				return true
			}
			return false
		}
		o.at++
	}
	return false
}
