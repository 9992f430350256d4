package journal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

// dataDir is the directory of all journals on a model disk.
const dataDir = "/data"

// counts are the cases that a search has seen.
type counts struct {
	Appended, Confirmed, Completed, Stopped, Full, Failed, Kills, PowerLosses, Removed, Flipped, Copies, Bad, Missing int
	Recycled, Salvaged                                                                                                int
}

// add adds other to c.
func (c *counts) add(other counts) {
	for i, p := range other.all() {
		*c.all()[i] += *p
	}
}

// all returns pointers to the counts.
func (c *counts) all() []*int {
	return []*int{
		&c.Appended, &c.Confirmed, &c.Completed, &c.Stopped, &c.Full, &c.Failed, &c.Kills, &c.PowerLosses, &c.Removed,
		&c.Flipped, &c.Copies, &c.Bad, &c.Missing, &c.Recycled, &c.Salvaged,
	}
}

// rare reports whether a case was seen less than 20 times.
func (c *counts) rare() bool {
	return slices.ContainsFunc(c.all(), func(n *int) bool { return *n < 20 })
}

// bootModel records what a test has done with one boot.
type bootModel struct {
	id         uint64
	j          *journal.Journal
	ring       []journal.RingMember
	appended   uint32          // payloads 1 to appended were given to Append
	must       map[uint32]bool // payloads that have to be read
	instead    []uint32        // if not nil: they may be read instead, because a crash interrupted Complete
	generation []uint32        // payloads of the current generation
	waiting    []uint32        // payloads that the next Sync confirms
	failed     bool            // nothing is confirmed until Begin
	complete   bool            // the current generation
	ever       bool            // a generation was completed
	stopping   bool            // Stop was called
	stopped    bool
	faulty     bool // the disk had faults while the boot ran
	powerless  bool // the power failed since the boot started
	flipped    bool // its files were damaged
	removed    bool // its directory was, at least in part
	gone       bool // its directory was removed completely
}

// crashWorld is a disk and the boots that have used it.
type crashWorld struct {
	counts
	rng       *rand.Rand
	disk      *modeldisk.Disk
	bug       journal.Bug
	boots     []*bootModel
	options   journal.Options
	countdown int // operations until the process ends; 0: never
	dead      bool
	recycle   bool
}

// newCrashWorld returns a world whose choices depend on seed only.
func newCrashWorld(seed uint64) *crashWorld {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &crashWorld{rng: rng, disk: modeldisk.New(rng)}
	w.disk.SetBytes(dataDir+"/.keep", nil)
	w.disk.NoPreallocation = rng.IntN(4) == 0
	if w.recycle = rng.IntN(5) == 0; w.recycle {
		w.disk.Recycle(true)
		w.Recycled++
	}
	w.disk.Before = func(modeldisk.Operation, string) {
		if w.countdown--; w.countdown == 0 {
			w.crash()
		}
	}
	segment := int64(4096 * (4 + rng.IntN(12)))
	w.options = journal.Options{
		Dir: dataDir, Label: "test", Scheme: 3, Member: "pod-0", SegmentBytes: segment,
		MaxBytes: segment * int64(3+rng.IntN(20)), Salt: rng.Uint64,
	}
	return w
}

// crash ends the process, or the machine.
func (w *crashWorld) crash() {
	w.dead = true
	if w.recycle || w.rng.IntN(2) == 0 { // see step
		w.Kills++
		w.disk.Kill()
		return
	}
	w.PowerLosses++
	for _, b := range w.boots {
		b.powerless = true
	}
	w.disk.PowerLoss()
}

// run runs some boots, and reads after each what all of them have left.
func (w *crashWorld) run() error {
	for range 2 + w.rng.IntN(3) {
		b := w.boot()
		for range 5 + w.rng.IntN(60) {
			if err := w.step(b); err != nil {
				return err
			}
			if w.dead {
				break
			}
		}
		if w.dead || w.rng.IntN(2) == 0 {
			w.crash()
		} else if err := b.j.Close(); err != nil {
			return err
		}
		w.dead, w.countdown = false, 0
		w.disk.Heal()
		if err := w.load(); err != nil {
			return err
		}
	}
	return nil
}

// boot starts a boot.
func (w *crashWorld) boot() *bootModel {
	o := w.options
	o.FS, o.Boot = w.disk.FS(), w.rng.Uint64()
	b := &bootModel{id: o.Boot, must: map[uint32]bool{}, j: journal.New(o)}
	b.j.Sabotage(w.bug)
	for i := range w.rng.IntN([]int{4, 30, 200}[w.rng.IntN(3)]) {
		b.ring = append(b.ring, journal.RingMember{Name: fmt.Sprintf("pod-%d-of-a-long-name", i), Boot: uint64(i)})
	}
	w.boots = append(w.boots, b)
	if w.rng.IntN(3) == 0 {
		w.countdown = 1 + w.rng.IntN(60)
	}
	return b
}

// step does something with the journal of a boot.
func (w *crashWorld) step(b *bootModel) error {
	switch n := w.rng.IntN(100); {
	case n < 8 || n < 40 && (b.j.Status().Generation == 0 || b.failed):
		w.begin(b)
	case n < 55:
		w.append(b)
	case n < 75:
		w.sync(b)
	case n < 85:
		w.complete(b)
	case n < 87:
		w.stop(b)
	case n < 92 && !w.recycle: // recycled space that has no header looks like a damaged segment
		w.breakDisk(b)
	case n < 96:
		w.disk.Heal()
	case !w.recycle:
		if err := w.copy(b); err != nil {
			return err
		}
	}
	if w.dead {
		return nil // a loss of power may have undone removals
	}
	if used, status := w.disk.Used(b.j.Dir()), b.j.Status(); used > min(w.options.MaxBytes, status.Bytes) {
		return fmt.Errorf("%d bytes are used, of %d by its status and at most %d", used, status.Bytes, w.options.MaxBytes)
	}
	return nil
}

// breakDisk lets operations fail from now on.
func (w *crashWorld) breakDisk(b *bootModel) {
	b.faulty = true
	switch w.rng.IntN(5) {
	case 0:
		w.disk.SetReadOnly(true)
	case 1:
		w.disk.SetBudget(w.disk.Used("/") + int64(w.rng.IntN(20000)))
	case 2:
		w.disk.Fail(modeldisk.Sync, syscall.EIO)
	default:
		w.disk.Fail(modeldisk.Operation(w.rng.IntN(int(modeldisk.Read))), syscall.EIO)
	}
}

// outcome records an error of a method, and reports whether the caller can rely on its success.
func (w *crashWorld) outcome(b *bootModel, err error) bool {
	switch {
	case w.dead:
		return false
	case errors.Is(err, journal.ErrFull):
		w.Full++
	case err != nil && !errors.Is(err, journal.ErrTooLarge) && !errors.Is(err, journal.ErrStopped) &&
		!errors.Is(err, journal.ErrNoGeneration):
		w.Failed++
		b.failed = true
	}
	return err == nil
}

func (w *crashWorld) begin(b *bootModel) {
	if w.outcome(b, b.j.Begin(time.Unix(1000, 0), b.ring)) {
		if b.failed {
			b.waiting = nil
		}
		b.failed, b.complete, b.generation = false, false, nil
	}
}

func (w *crashWorld) append(b *bootModel) {
	b.appended++
	w.Appended++
	if w.outcome(b, b.j.Append(payload(b.id, b.appended))) {
		b.generation = append(b.generation, b.appended)
		b.waiting = append(b.waiting, b.appended)
	}
}

func (w *crashWorld) sync(b *bootModel) {
	if w.outcome(b, b.j.Sync()) {
		w.confirm(b)
	}
}

// confirm records that the payloads that were appended so far are durable.
func (w *crashWorld) confirm(b *bootModel) {
	for _, id := range b.waiting {
		b.must[id] = true
		w.Confirmed++
	}
	b.waiting = nil
}

func (w *crashWorld) complete(b *bootModel) {
	err := b.j.Complete()
	if w.dead && !b.complete {
		b.instead = append([]uint32{}, b.generation...)
	}
	if !w.outcome(b, err) || b.complete {
		return
	}
	w.Completed++
	b.complete, b.ever, b.waiting = true, true, nil
	clear(b.must)
	for _, id := range b.generation {
		b.must[id] = true
	}
}

func (w *crashWorld) stop(b *bootModel) {
	b.stopping = true
	if w.outcome(b, b.j.Stop()) {
		w.Stopped++
		b.stopped = true
		w.confirm(b)
	}
}

// copy requires that a copy of the boot's files that is taken while the boot is running can be read.
func (w *crashWorld) copy(b *bootModel) error {
	if w.dead || b.removed {
		return nil
	}
	w.Copies++
	to := modeldisk.New(w.rng)
	cut := w.rng.IntN(2) == 0
	for _, path := range w.disk.Files(b.j.Dir()) {
		content := w.disk.Bytes(path)
		if cut {
			content = content[:w.rng.IntN(len(content)+1)]
		}
		to.SetBytes(path, content)
	}
	boots, err := journal.Boots(to.FS(), dataDir, "test")
	if err != nil {
		return err
	}
	for _, found := range boots {
		got, err := w.read(found, b)
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		if missing := b.missing(got); !cut && missing != 0 {
			return fmt.Errorf("copy: payload %d is missing: %w", missing, errors.Join(got.Errors...))
		}
		if got.UnreadableFiles > 0 && !(cut && b.faulty) { // a fault may cost one header, and the cut the others
			return fmt.Errorf("copy: %w", errors.Join(got.Errors...))
		}
	}
	return nil
}

// payload returns the payload with a number of a boot.
func payload(boot uint64, id uint32) []byte {
	rng := rand.New(rand.NewPCG(boot, uint64(id)))
	b := make([]byte, 12, 12+rng.IntN([]int{1, 200, 4100, 20000}[rng.IntN(4)]))
	binary.LittleEndian.PutUint64(b, boot)
	binary.LittleEndian.PutUint32(b[8:], id)
	for len(b) < cap(b) {
		b = append(b, byte(rng.Uint32()))
	}
	return b
}

// content holds a report and the places of the payloads that were read.
type content struct {
	journal.LoadReport
	places map[uint32]journal.Block // without payload
}

// missing returns the number of a payload that had to be read and was not, or 0.
func (b *bootModel) missing(got content) uint32 {
	lost := uint32(0)
	for id := range b.must {
		if _, ok := got.places[id]; !ok && (lost == 0 || id < lost) {
			lost = id
		}
	}
	if b.instead != nil && lost != 0 {
		lost = 0
		for _, id := range b.instead {
			if _, ok := got.places[id]; !ok {
				lost = id
			}
		}
	}
	return lost
}

// read reads a boot's directory. It returns an error if a block is delivered that b has not appended.
func (w *crashWorld) read(found journal.Boot, b *bootModel) (content, error) {
	r, err := found.Open()
	if err != nil {
		return content{}, err
	}
	defer r.Close()
	return w.readFrom(r, b)
}

// readFrom is read of an open directory.
func (w *crashWorld) readFrom(r *journal.BootReader, b *bootModel) (content, error) {
	r.Sabotage(w.bug)
	got := content{places: map[uint32]journal.Block{}}
	var last journal.Block
	report, err := r.Read(func(block journal.Block) error {
		if len(block.Payload) < 12 {
			return fmt.Errorf("a payload of %d bytes", len(block.Payload))
		}
		boot, id := binary.LittleEndian.Uint64(block.Payload), binary.LittleEndian.Uint32(block.Payload[8:])
		switch {
		case boot != b.id || id == 0 || id > b.appended || !bytes.Equal(block.Payload, payload(boot, id)):
			return fmt.Errorf("%s: offset %d: payload %d of boot %x was never appended", block.File, block.Offset, id, boot)
		case block.Generation < last.Generation || block.Sequence <= last.Sequence:
			return fmt.Errorf("%s: offset %d: out of order", block.File, block.Offset)
		}
		last, last.Payload = block, nil
		if _, twice := got.places[id]; twice {
			return fmt.Errorf("payload %d is delivered twice", id)
		}
		got.places[id] = last
		return nil
	})
	got.LoadReport = report
	if report.Blocks != len(got.places) && err == nil {
		err = fmt.Errorf("%d blocks are reported, not %d", report.Blocks, len(got.places))
	}
	w.Bad += report.BadBlocks
	w.Missing += int(report.MissingBlocks)
	for _, e := range report.Errors {
		if strings.Contains(e.Error(), "offset 0: ") {
			w.Salvaged++
		}
	}
	return got, err
}
