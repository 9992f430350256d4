package module

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"
)

// The layout of a segment, in bytes.
const (
	headerSize = 4096
	slotSize   = 32

	offSlots  = 12
	offK0     = 16
	offK1     = 24
	offMisses = 64 // the four counters of the module

	offLo      = 0 // in a slot
	offHi      = 8
	offWord    = 16
	offExpires = 24

	// defaultSlots has room for 10,000 keys, and more, in 516 KiB.
	defaultSlots = 16_384
	// neighbors is the number of slots, from that of the fingerprint on, in one of which a lease is.
	neighbors = 8

	minSlots = 64
	maxSlots = 1 << 20
)

const segmentMagic = "KWLEASE1"

// MaxTokens is the most tokens that a lease may have at once.
const MaxTokens = 1 << 30

func segmentSize(slots uint32) int { return headerSize + slotSize*int(slots) }

// LeaseSegment is memory that is shared with one Envoy, in which the Envoy spends leases.
//
// It is for one goroutine at a time, while the Envoy changes the memory. Methods that return the tokens left of a lease
// return an error if the memory does not contain what this member has written, less what was spent of it. All tokens of
// the lease then count as spent.
type LeaseSegment struct {
	memory []byte
	file   *os.File // the memory, for the Envoy; nil once it was sent
	slots  uint32
	k0, k1 uint64
	mine   []slotCopy
	used   int
}

// slotCopy records what this member has written to a slot. The slot itself is never trusted.
type slotCopy struct {
	print  Fingerprint
	epoch  uint32
	tokens uint32 // with that epoch
}

// NewSegment creates a segment of that many slots, a power of two. The caller must Close it.
func NewSegment(slots uint32) (*LeaseSegment, error) {
	if slots < minSlots || slots > maxSlots || slots&(slots-1) != 0 {
		return nil, fmt.Errorf("create a segment: %d slots; want a power of two from %d to %d", slots, minSlots, maxSlots)
	}
	memory, file, err := sharedMemory(segmentSize(slots))
	if err != nil {
		return nil, fmt.Errorf("create a segment: %w", err)
	}
	s := &LeaseSegment{memory: memory, file: file, slots: slots, mine: make([]slotCopy, slots)}
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails
	s.k0, s.k1 = binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	copy(memory, segmentMagic)
	binary.LittleEndian.PutUint32(memory[8:], segmentVersion)
	binary.LittleEndian.PutUint32(memory[offSlots:], slots)
	binary.LittleEndian.PutUint64(memory[offK0:], s.k0)
	binary.LittleEndian.PutUint64(memory[offK1:], s.k1)
	return s, nil
}

// Close releases this member's view of the memory. The Envoy's remains.
func (s *LeaseSegment) Close() error {
	err := s.closeFile()
	memory := s.memory
	s.memory = nil
	return errors.Join(err, unmap(memory))
}

func (s *LeaseSegment) closeFile() error {
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Close()
}

// Slots returns the number of slots, and how many of them are in use.
func (s *LeaseSegment) Slots() (all, used int) { return int(s.slots), s.used }

// Fingerprint returns the fingerprint of a key that AppendKey has made.
func (s *LeaseSegment) Fingerprint(key []byte) Fingerprint { return fingerprint(s.k0, s.k1, key) }

// at returns the number at an offset of the memory. Envoy's processor has the same byte order, because it is this one.
func (s *LeaseSegment) at(off int) *uint64 {
	_ = s.memory[off+7]
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(s.memory[off:])))
}

func (s *LeaseSegment) slot(i uint32, off int) *uint64 {
	return s.at(headerSize + slotSize*int(i) + off)
}

func word(epoch, tokens uint32) uint64 { return uint64(epoch)<<32 | uint64(tokens) }

// Put adds a lease of a descriptor that has none. expires is in nanoseconds of CLOCK_MONOTONIC. It returns the lease's
// slot, or false if the slots in which it could be are taken.
func (s *LeaseSegment) Put(f Fingerprint, tokens uint32, expires int64) (slot uint32, ok bool) {
	if f == (Fingerprint{}) {
		return 0, false
	}
	for i := range uint32(neighbors) {
		slot = (uint32(f.Lo) + i) & (s.slots - 1)
		m := &s.mine[slot]
		if m.print != (Fingerprint{}) {
			continue
		}
		s.write(slot, f, tokens, expires)
		s.used++
		return slot, true
	}
	return 0, false
}

// Rivals calls see with each slot in which the lease of a descriptor could be, if all of them are taken. Otherwise, Put
// succeeds.
func (s *LeaseSegment) Rivals(f Fingerprint, see func(slot uint32)) {
	slot := func(i uint32) uint32 { return (uint32(f.Lo) + i) & (s.slots - 1) }
	for i := range uint32(neighbors) {
		if s.mine[slot(i)].print == (Fingerprint{}) {
			return
		}
	}
	for i := range uint32(neighbors) {
		see(slot(i))
	}
}

// write makes a free slot one with a lease. Requests that have read the word before cannot spend the tokens, because the
// epoch differs.
func (s *LeaseSegment) write(slot uint32, f Fingerprint, tokens uint32, expires int64) {
	m := &s.mine[slot]
	tokens = min(tokens, MaxTokens)
	atomic.StoreUint64(s.slot(slot, offWord), word(m.epoch+1, 0))
	atomic.StoreUint64(s.slot(slot, offLo), f.Lo)
	atomic.StoreUint64(s.slot(slot, offHi), f.Hi)
	atomic.StoreUint64(s.slot(slot, offExpires), uint64(expires))
	*m = slotCopy{print: f, epoch: m.epoch + 2, tokens: tokens}
	atomic.StoreUint64(s.slot(slot, offWord), word(m.epoch, tokens))
}

// left returns the tokens of a slot's word, which was read from the memory.
func (m *slotCopy) left(w uint64) (uint32, error) {
	if uint32(w>>32) != m.epoch || uint32(w) > m.tokens {
		return 0, errCorrupt
	}
	return uint32(w), nil
}

// Left returns the tokens that are left of a lease.
func (s *LeaseSegment) Left(slot uint32) (uint32, error) {
	return s.mine[slot].left(atomic.LoadUint64(s.slot(slot, offWord)))
}

// Add adds tokens to a lease. It returns how many were left before.
func (s *LeaseSegment) Add(slot, tokens uint32) (uint32, error) {
	m := &s.mine[slot]
	tokens = min(tokens, MaxTokens-min(MaxTokens, m.tokens))
	added := word(1, tokens)
	left, err := m.left(atomic.AddUint64(s.slot(slot, offWord), added) - added)
	m.epoch, m.tokens = m.epoch+1, left+tokens
	if err != nil {
		m.tokens = 0
	}
	return left, err
}

// Remove ends a lease. It returns how many tokens were left, which cannot be spent any more.
func (s *LeaseSegment) Remove(slot uint32) (uint32, error) {
	m := &s.mine[slot]
	left, err := m.left(atomic.SwapUint64(s.slot(slot, offWord), word(m.epoch+1, 0)))
	*m = slotCopy{epoch: m.epoch + 1}
	atomic.StoreUint64(s.slot(slot, offLo), 0)
	atomic.StoreUint64(s.slot(slot, offHi), 0)
	s.used--
	return left, err
}

// SpendCounters are the numbers that a module counts itself. They can have any value.
type SpendCounters struct{ Misses, Empty, Corrupt, Taken uint64 }

// Counters returns the numbers of the module.
func (s *LeaseSegment) Counters() SpendCounters {
	n := func(i int) uint64 { return atomic.LoadUint64(s.at(offMisses + 8*i)) }
	return SpendCounters{Misses: n(0), Empty: n(1), Corrupt: n(2), Taken: n(3)}
}
