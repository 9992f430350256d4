package sim

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

// journalDir is the directory of all journals on a volume.
const journalDir = "/data"

// volume is a disk with the journals of one slot or several.
type volume struct {
	name       int
	disk       *modeldisk.Disk
	stallUntil int64
	syncError  error // of every sync now
	lost       bool  // since the last crash of all members: replaced by an empty one, or some of its bits have flipped
}

// makeVolumes creates the volumes, and assigns one to each slot.
func (w *world) makeVolumes() {
	if !w.o.Durable.On {
		return
	}
	for i := range w.o.Durable.Volumes {
		v := &volume{name: i}
		w.volumes = append(w.volumes, v)
		w.replaceVolume(v)
	}
	for i := range w.slots {
		w.slots[i].volume = w.volumes[i%len(w.volumes)]
	}
}

// replaceVolume makes v an empty volume.
func (w *world) replaceVolume(v *volume) {
	v.disk = modeldisk.New(rand.New(rand.NewPCG(w.o.Seed, w.rnd.Uint64())))
}

// process is a volume as the process of one member sees it. It takes time in a diskTask.
type process struct {
	m      *member
	volume *volume
	fs     journal.FS
	dead   bool  // the process has ended
	failed error // the last error of an operation without which nothing can be written
	writes int   // operations that change the disk
}

func (m *member) newProcess(v *volume) *process {
	return &process{m: m, volume: v, fs: v.disk.FS()}
}

// wait spends the time that an operation takes. It returns an error if the process has ended meanwhile.
func (p *process) wait(op modeldisk.Operation) error {
	if p.dead {
		return modeldisk.ErrDead
	}
	w, d := p.m.w, time.Duration(0)
	if op == modeldisk.Sync || op == modeldisk.SyncDir {
		d = 100*time.Microsecond + w.randomBelow(w.o.Durable.Sync)
	}
	if s := time.Duration(p.volume.stallUntil - w.now); s > 0 {
		d += s
	}
	if d > 0 && p.m.task != nil {
		p.m.task.yield(d)
	}
	if p.dead {
		return modeldisk.ErrDead
	}
	return nil
}

// do performs an operation that changes the disk.
func (p *process) do(op modeldisk.Operation, fn func() error) error {
	if err := p.wait(op); err != nil {
		return err
	}
	p.writes++
	err := fn()
	if err != nil && op != modeldisk.Remove && !errors.Is(err, journal.ErrLocked) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		p.failed = err
	}
	if op == modeldisk.Sync && p.m.task != nil {
		p.m.task.yield(50 * time.Microsecond) // it is durable, and the process may crash before it learns of it
	}
	if p.dead {
		return modeldisk.ErrDead
	}
	return err
}

// Mkdir implements journal.FS.
func (p *process) Mkdir(dir string) error {
	return p.do(modeldisk.Mkdir, func() error { return p.fs.Mkdir(dir) })
}

// Create implements journal.FS.
func (p *process) Create(path string) (f journal.SegmentWriter, err error) {
	err = p.do(modeldisk.Create, func() (err error) { f, err = p.fs.Create(path); return err })
	if err != nil {
		return nil, err
	}
	return &segment{f, p}, nil
}

// Open implements journal.FS.
func (p *process) Open(path string) (journal.SegmentReader, error) {
	if err := p.wait(modeldisk.Open); err != nil {
		return nil, err
	}
	return p.fs.Open(path)
}

// ReadDir implements journal.FS.
func (p *process) ReadDir(dir string) ([]journal.DirEntry, error) {
	if err := p.wait(modeldisk.List); err != nil {
		return nil, err
	}
	entries, err := p.fs.ReadDir(dir)
	return p.sabotageList(dir, entries), err
}

// Remove implements journal.FS.
func (p *process) Remove(path string) error {
	return p.do(modeldisk.Remove, func() error { return p.fs.Remove(path) })
}

// SyncDir implements journal.FS.
func (p *process) SyncDir(dir string) error {
	return p.do(modeldisk.SyncDir, func() error { return p.fs.SyncDir(dir) })
}

// Lock implements journal.FS.
func (p *process) Lock(path string) (c io.Closer, err error) {
	err = p.do(modeldisk.Lock, func() (err error) { c, err = p.fs.Lock(path); return err })
	return c, err
}

// segment is a file that a process writes.
type segment struct {
	journal.SegmentWriter
	p *process
}

// WriteAt implements io.WriterAt.
func (s *segment) WriteAt(b []byte, off int64) (n int, err error) {
	err = s.p.do(modeldisk.Write, func() (err error) { n, err = s.SegmentWriter.WriteAt(b, off); return err })
	return n, err
}

// Preallocate implements journal.SegmentWriter.
func (s *segment) Preallocate(size int64) error {
	return s.p.do(modeldisk.Preallocate, func() error { return s.SegmentWriter.Preallocate(size) })
}

// Sync implements journal.SegmentWriter.
func (s *segment) Sync() error {
	return s.p.do(modeldisk.Sync, func() error { return s.p.sabotageSync(s.SegmentWriter.Sync) })
}

// diskTask is a function that waits for a disk: it continues when that has answered.
type diskTask struct {
	next  func() (time.Duration, bool)
	stop  func()
	yield func(time.Duration) bool
}

// runTask runs fn, which may wait for the disk, and then done. A member runs one task at a time.
func (m *member) runTask(fn, done func()) {
	t := &diskTask{}
	t.next, t.stop = iter.Pull(func(yield func(time.Duration) bool) {
		stopped := false
		t.yield = func(d time.Duration) bool {
			stopped = stopped || !yield(d) // it must not be called again after it has returned false
			return !stopped
		}
		fn()
	})
	m.task = t
	m.continueTask(t, done)
}

func (m *member) continueTask(t *diskTask, done func()) {
	d, more := t.next()
	if !more {
		m.task = nil
		done()
		return
	}
	m.w.after(d, m, func() { m.continueTask(t, done) })
}

// kill ends the process of m: its disk operations fail, and its locks are released.
func (m *member) kill() {
	if m.keeper == nil {
		return
	}
	m.process.dead = true
	if m.task != nil {
		m.task.stop()
		m.task = nil
	}
	_ = m.keeper.Close()
}
