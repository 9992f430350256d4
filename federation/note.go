package federation

import (
	"encoding/binary"
	"math"
)

// noteTenants is the most tenants of a region that its notes describe one by one. The others are described together.
const noteTenants = 32

// Bounds of what a note can say. Higher numbers count as these.
const (
	maxTenantWeight = 10_000
	maxNoteHits     = 1 << 40
)

// note describes a region's tenants of a key to the other regions. Each request of the region has one.
type note struct {
	window  int64  // the window of got, by the region's clock
	floor   uint32 // hits of a window that only this region can spend
	tenants []noteTenant
	others  noteTenant // all others; its digest is 0, and its weight the sum of theirs
}

// noteTenant describes a tenant in a region.
type noteTenant struct {
	tenant uint64  // digest of its name
	weight uint32  // from 1 to maxTenantWeight, or more of several tenants
	rate   float64 // hits per second that it is offered, with three decimals
	got    uint64  // hits admitted in the window
}

// The encoding of a note:
//
//	u8 1   u8 number of tenants   i64 window   u32 floor   then for each tenant, and for all others:
//	u64 digest (0: all others)   u32 weight   u64 thousandths of a hit per second   u64 hits admitted
const (
	noteVersion    = 1
	noteHead       = 14
	noteTenantSize = 28
	noteMost       = noteHead + (noteTenants+1)*noteTenantSize // less than MaxNote
)

// encode returns n as the bytes of a request.
func (n *note) encode() []byte {
	b := make([]byte, 0, noteHead+(len(n.tenants)+1)*noteTenantSize)
	b = append(b, noteVersion, byte(len(n.tenants)))
	b = binary.BigEndian.AppendUint64(b, uint64(n.window))
	b = binary.BigEndian.AppendUint32(b, n.floor)
	for i := range n.tenants {
		b = n.tenants[i].encode(b)
	}
	if n.others.weight > 0 {
		b = n.others.encode(b)
	}
	return b
}

func (t *noteTenant) encode(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, t.tenant)
	b = binary.BigEndian.AppendUint32(b, t.weight)
	b = binary.BigEndian.AppendUint64(b, uint64(math.Round(1000*min(t.rate, maxNoteHits))))
	return binary.BigEndian.AppendUint64(b, min(t.got, maxNoteHits))
}

// decodeNote reads a note, which may come from a region that does not follow the rules: ok is false for one that no region
// sends, and numbers are within their bounds.
func decodeNote(b []byte) (n note, ok bool) {
	if len(b) < noteHead || b[0] != noteVersion || b[1] > noteTenants {
		return n, false
	}
	count := int(b[1])
	n.window, n.floor = int64(binary.BigEndian.Uint64(b[2:])), binary.BigEndian.Uint32(b[10:])
	b = b[noteHead:]
	if len(b) != count*noteTenantSize && len(b) != (count+1)*noteTenantSize {
		return n, false
	}
	seen := map[uint64]bool{}
	for range count {
		t := decodeNoteTenant(b, maxTenantWeight)
		if t.tenant == 0 || seen[t.tenant] {
			return n, false
		}
		seen[t.tenant] = true
		n.tenants, b = append(n.tenants, t), b[noteTenantSize:]
	}
	if len(b) > 0 {
		n.others = decodeNoteTenant(b, maxOthers*maxTenantWeight)
		if n.others.tenant != 0 {
			return n, false
		}
	}
	return n, true
}

func decodeNoteTenant(b []byte, most uint32) noteTenant {
	return noteTenant{
		tenant: binary.BigEndian.Uint64(b),
		weight: min(max(1, binary.BigEndian.Uint32(b[8:])), most),
		rate:   float64(min(binary.BigEndian.Uint64(b[12:]), 1000*maxNoteHits)) / 1000,
		got:    min(binary.BigEndian.Uint64(b[20:]), maxNoteHits),
	}
}
