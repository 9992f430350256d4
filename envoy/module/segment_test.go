package module

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/keyward/keyward/internal/config"
)

// TestFingerprint checks the reference vectors of SipHash-2-4-128, whose key is 00 01 ... 0f and whose messages are 00 01 ...:
// Lo is made of the first 8 bytes of the output.
func TestFingerprint(t *testing.T) {
	const k0, k1 = 0x0706050403020100, 0x0f0e0d0c0b0a0908
	message := []byte{}
	for _, want := range []string{
		"a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45", "8177228da4a45dc7fca38bdef60affe4",
		"9c70b60c5267a94e5f33b6b02985ed51", "f88164c12d9c8faf7d0f6e7c7bcd5579", "1368875980776f8854527a07690e9627",
		"14eeca338b208613485ea0308fd7a15e", "a1f1ebbed8dbc153c0b84aa61ff08239", "3b62a9ba6258f5610f83e264f31497b4",
	} {
		f := fingerprint(k0, k1, message)
		got := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, f.Lo), f.Hi)
		if hex.EncodeToString(got) != want {
			t.Errorf("%d bytes: %x, not %s", len(message), got, want)
		}
		message = append(message, byte(len(message)))
	}
}

// TestKey checks the bytes of a key, and that they are those of an INTEREST.
func TestKey(t *testing.T) {
	key, ok := AppendKey(nil, "app", []config.Entry{{Key: "k", Value: "vv"}, {Key: "", Value: ""}})
	if want := "03006170700200" + "01006b" + "02007676" + "0000" + "0000"; !ok || hex.EncodeToString(key) != want {
		t.Errorf("%x, %v", key, ok)
	}
	if _, ok := AppendKey(nil, string(make([]byte, 65536)), nil); ok {
		t.Error("a domain that is too long has a key")
	}
}

func newSegment(t testing.TB, slots uint32) *LeaseSegment {
	t.Helper()
	s, err := NewSegment(slots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestSeals checks that the file of a segment can neither shrink nor grow, and cannot be sealed further.
func TestSeals(t *testing.T) {
	s := newSegment(t, 64)
	if err := s.file.Truncate(0); err == nil {
		t.Error("the segment can shrink")
	}
	if err := s.file.Truncate(1 << 20); err == nil {
		t.Error("the segment can grow")
	}
	if _, err := unix.FcntlInt(s.file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("the segment can be made read-only")
	}
	if _, err := NewSegment(100); err == nil {
		t.Error("a segment has 100 slots")
	}
	for name, want := range map[string]uint32{"slots": 64, "version": 1} {
		off := map[string]int{"slots": 12, "version": 8}[name]
		if got := binary.LittleEndian.Uint32(s.memory[off:]); got != want {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// envoyOf is another view of a segment's memory, as a module has it.
func envoyOf(t testing.TB, s *LeaseSegment) *clientView {
	t.Helper()
	fd, err := unix.Dup(int(s.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	v, err := mapSegment(fd, s.slots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.close)
	return v
}

// TestLeases checks the tokens of leases through their changes.
func TestLeases(t *testing.T) {
	s := newSegment(t, 64)
	v := envoyOf(t, s)
	f := Fingerprint{5, 7}
	later := int64(MonotonicNow()) + 1e9
	slot, ok := s.Put(f, 10, later)
	if !ok || v.spend(f, 4) != spent || v.spend(f, 7) != empty || v.spend(Fingerprint{5, 8}, 1) != missing {
		t.Fatal("a lease of 10 tokens is not spent as such")
	}
	if left, err := s.Left(slot); left != 6 || err != nil {
		t.Errorf("%d left, %v", left, err)
	}
	if left, err := s.Add(slot, 5); left != 6 || err != nil || v.spend(f, 11) != spent || v.spend(f, 1) != empty {
		t.Errorf("%d left before 5 more, %v", left, err)
	}
	if left, err := s.Remove(slot); left != 0 || err != nil || v.spend(f, 1) != missing {
		t.Errorf("%d left at the end, %v", left, err)
	}
	slot, _ = s.Put(f, 3, int64(MonotonicNow())-1)
	if v.spend(f, 1) != empty {
		t.Error("an expired lease is spent")
	}
	if left, err := s.Remove(slot); left != 3 || err != nil {
		t.Errorf("%d left of an expired lease, %v", left, err)
	}
}

// TestNeighbors checks that eight leases with the same place fit, also at the end of the memory, and the ninth does not.
func TestNeighbors(t *testing.T) {
	s := newSegment(t, 64)
	v := envoyOf(t, s)
	later := int64(MonotonicNow()) + 1e9
	var slots []uint32
	for i := range uint64(8) {
		slot, ok := s.Put(Fingerprint{62, i + 1}, 1, later)
		if !ok {
			t.Fatalf("lease %d does not fit", i)
		}
		slots = append(slots, slot)
	}
	if _, ok := s.Put(Fingerprint{62, 9}, 1, later); ok {
		t.Error("nine leases fit into eight slots")
	}
	if all, used := s.Slots(); all != 64 || used != 8 {
		t.Errorf("%d of %d slots", used, all)
	}
	for i := range uint64(8) {
		if v.spend(Fingerprint{62, i + 1}, 1) != spent {
			t.Errorf("lease %d is not found", i)
		}
	}
	if _, err := s.Remove(slots[3]); err != nil {
		t.Error(err)
	}
	if _, ok := s.Put(Fingerprint{62, 9}, 1, later); !ok || v.spend(Fingerprint{62, 9}, 1) != spent {
		t.Error("a slot cannot be used again")
	}
}

// TestCorrupt checks that no change of the memory makes more tokens return than were put there.
func TestCorrupt(t *testing.T) {
	for name, corrupt := range map[string]uint64{
		"more tokens": word(2, 11), "another epoch": word(3, 1), "all": ^uint64(0), "overflow": word(2, ^uint32(0)),
	} {
		for op, do := range map[string]func(*LeaseSegment, uint32) (uint32, error){
			"Left":   (*LeaseSegment).Left,
			"Add":    func(s *LeaseSegment, i uint32) (uint32, error) { return s.Add(i, 5) },
			"Remove": (*LeaseSegment).Remove,
		} {
			s := newSegment(t, 64)
			slot, _ := s.Put(Fingerprint{1, 1}, 10, 1)
			atomic.StoreUint64(s.slot(slot, offWord), corrupt)
			if left, err := do(s, slot); left != 0 || err == nil {
				t.Errorf("%s: %s returns %d tokens, %v", op, name, left, err)
			}
			if op != "Remove" {
				if left, err := s.Remove(slot); left > 10 || op == "Add" && err == nil {
					t.Errorf("%s, then Remove: %s returns %d tokens, %v", op, name, left, err)
				}
			}
		}
	}
}

// TestConcurrent has requests spend a lease while it is filled, ended and made again. Each token is spent or returned once.
func TestConcurrent(t *testing.T) {
	s := newSegment(t, 64)
	v := envoyOf(t, s)
	f := Fingerprint{3, 4}
	later := int64(MonotonicNow()) + 60e9
	var admitted, stop atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for stop.Load() == 0 {
				if v.spend(f, 3) == spent {
					admitted.Add(3)
				}
			}
		})
	}
	given, returned := int64(0), int64(0)
	for i := range 3000 {
		slot, _ := s.Put(f, 50, later)
		given += 50
		for left := uint32(50); i%30 == 0 && left == 50; left, _ = s.Left(slot) {
			runtime.Gosched()
		}
		for range rand.N(3) {
			if _, err := s.Add(slot, 20); err != nil {
				t.Fatal(err)
			}
			given += 20
		}
		left, err := s.Remove(slot)
		if err != nil {
			t.Fatal(err)
		}
		returned += int64(left)
	}
	stop.Store(1)
	wg.Wait()
	if admitted.Load()+returned != given || admitted.Load() == 0 {
		t.Errorf("%d spent and %d returned of %d", admitted.Load(), returned, given)
	}
}

// FuzzSegment writes anything anywhere into the memory between the sidecar's own changes. No lease returns more than it
// had, and nothing panics.
func FuzzSegment(f *testing.F) {
	f.Add([]byte{0, 10, 1, 5, 3, 200, 2, 0, 0, 20, 2, 0})
	f.Add([]byte{0, 10, 3, 80, 1, 5, 2, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		s := newSegment(t, 64)
		granted, returned, slot, have := uint64(0), uint64(0), uint32(0), false
		for i := 0; i+1 < len(ops); i += 2 {
			n := uint32(ops[i+1])
			switch op := ops[i] % 4; {
			case op == 0 && !have:
				if slot, have = s.Put(Fingerprint{uint64(n), 1}, n, 1); have {
					granted += uint64(n)
				}
			case op == 1 && have:
				if _, err := s.Add(slot, n); err == nil {
					granted += uint64(n)
				}
			case op == 2 && have:
				left, _ := s.Remove(slot)
				returned, have = returned+uint64(left), false
			case op == 3:
				r := rand.New(rand.NewPCG(uint64(n), uint64(i)))
				at := r.IntN(len(s.memory) - 8)
				if n&1 == 0 {
					at = headerSize + slotSize*int(slot) + offWord + r.IntN(8) - 4
				}
				copy(s.memory[at:], ops[i:min(len(ops), i+8)])
			}
			if returned > granted {
				t.Fatalf("%d tokens returned of %d", returned, granted)
			}
			_ = s.Counters()
		}
	})
}

// TestRoom requires that the memory of an Envoy has room for 10,000 keys in at most 1 MiB, whatever the keys are.
func TestRoom(t *testing.T) {
	s := newSegment(t, defaultSlots)
	const keys = 10_000
	full := 0
	var key [8]byte
	for i := range uint64(keys) {
		binary.LittleEndian.PutUint64(key[:], i)
		if _, ok := s.Put(s.Fingerprint(key[:]), 1, int64(1)<<40); !ok {
			full++
		}
	}
	t.Logf("%d keys in %d bytes, %d without room", keys, segmentSize(defaultSlots), full)
	if full > keys/50 || segmentSize(defaultSlots) > 1<<20 {
		t.Errorf("%d of %d keys have no room in %d bytes", full, keys, segmentSize(defaultSlots))
	}
}
