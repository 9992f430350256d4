package modeldisk

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/keyward/keyward/journal"
)

// maxRecycled is the number of bytes of removed files that a disk remembers.
const maxRecycled = 1 << 20

// process is the disk as a process sees it.
type process struct {
	disk  *Disk
	epoch int
}

// begin starts an operation. Unless it returns an error, the disk is locked.
func (p *process) begin(op Operation, path string) error {
	if before := p.disk.Before; before != nil {
		before(op, path)
	}
	p.disk.mu.Lock()
	err := p.disk.fault(op)
	if p.epoch != p.disk.epoch {
		err = ErrDead
	}
	if err != nil && !late(op, err) {
		p.disk.mu.Unlock()
		return pathError("model", path, err)
	}
	return nil
}

// late reports whether an operation that fails has an effect.
func late(op Operation, err error) bool {
	return (op == Write || op == Sync || op == SyncDir) && !errors.Is(err, ErrDead)
}

// parent returns the directory of a path and the last name of it.
func (p *process) parent(path string) (dir *node, name string, err error) {
	dir = p.disk.find(filepath.Dir(path))
	if dir == nil || !dir.dir {
		return nil, "", pathError("model", path, fs.ErrNotExist)
	}
	return dir, filepath.Base(path), nil
}

// create makes a node with a new name.
func (p *process) create(op Operation, path string, n *node) error {
	if err := p.begin(op, path); err != nil {
		return err
	}
	defer p.disk.mu.Unlock()
	dir, name, err := p.parent(path)
	if err != nil {
		return err
	}
	if dir.children[name] != nil {
		return pathError("create", path, fs.ErrExist)
	}
	dir.change(name, n)
	return nil
}

// Mkdir implements journal.FS.
func (p *process) Mkdir(dir string) error { return p.create(Mkdir, dir, newDir()) }

// Create implements journal.FS.
func (p *process) Create(path string) (journal.SegmentWriter, error) {
	n := &node{}
	if err := p.create(Create, path, n); err != nil {
		return nil, err
	}
	return &handle{process: p, node: n, path: path}, nil
}

// lookup starts an operation on an existing path. Unless it returns an error, the disk is locked.
func (p *process) lookup(op Operation, path string) (*node, error) {
	if err := p.begin(op, path); err != nil {
		return nil, err
	}
	n := p.disk.find(path)
	if n == nil {
		p.disk.mu.Unlock()
		return nil, pathError("model", path, fs.ErrNotExist)
	}
	return n, nil
}

// Open implements journal.FS.
func (p *process) Open(path string) (journal.SegmentReader, error) {
	n, err := p.lookup(Open, path)
	if err != nil {
		return nil, err
	}
	defer p.disk.mu.Unlock()
	return &handle{process: p, node: n, path: path}, nil
}

// ReadDir implements journal.FS.
func (p *process) ReadDir(dir string) ([]journal.DirEntry, error) {
	n, err := p.lookup(List, dir)
	if err != nil {
		return nil, err
	}
	defer p.disk.mu.Unlock()
	var entries []journal.DirEntry
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		e := journal.DirEntry{Name: name}
		if n.children[name].dir {
			e.Type = fs.ModeDir
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Remove implements journal.FS.
func (p *process) Remove(path string) error {
	n, err := p.lookup(Remove, path)
	if err != nil {
		return err
	}
	defer p.disk.mu.Unlock()
	if len(n.children) > 0 {
		return pathError("remove", path, syscall.ENOTEMPTY)
	}
	dir, name, err := p.parent(path)
	if err != nil {
		return err
	}
	dir.change(name, nil)
	if p.disk.recycle && len(p.disk.recycled) < maxRecycled {
		p.disk.recycled = append(p.disk.recycled, n.seen...)
	}
	return nil
}

// SyncDir implements journal.FS.
func (p *process) SyncDir(dir string) error {
	n, err := p.lookup(SyncDir, dir)
	if err != nil {
		return err
	}
	defer p.disk.mu.Unlock()
	if err := p.disk.fault(SyncDir); err != nil {
		n.loseNames(p.disk.rng, p.disk.rng.Float64())
		return pathError("sync", dir, err)
	}
	n.syncNames()
	return nil
}

// Lock implements journal.FS.
func (p *process) Lock(path string) (io.Closer, error) {
	if err := p.begin(Lock, path); err != nil {
		return nil, err
	}
	defer p.disk.mu.Unlock()
	dir, name, err := p.parent(path)
	if err != nil {
		return nil, err
	}
	n := dir.children[name]
	if n == nil {
		if p.disk.readOnly {
			return nil, pathError("lock", path, syscall.EROFS)
		}
		n = &node{}
		dir.change(name, n)
	}
	if p.disk.locks[n] {
		return nil, pathError("lock", path, journal.ErrLocked)
	}
	p.disk.locks[n] = true
	return &lock{process: p, node: n}, nil
}

// lock is a lock that a process holds.
type lock struct {
	*process
	node *node
}

// Close implements io.Closer.
func (l *lock) Close() error {
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	if l.epoch == l.disk.epoch {
		delete(l.disk.locks, l.node)
	}
	return nil
}

// handle is an open file.
type handle struct {
	*process
	node *node
	path string
}

// Close implements io.Closer.
func (h *handle) Close() error { return nil }

// Size implements journal.SegmentReader.
func (h *handle) Size() (int64, error) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	return int64(len(h.node.seen)), nil
}

// ReadAt implements io.ReaderAt.
func (h *handle) ReadAt(b []byte, off int64) (int, error) {
	if err := h.begin(Read, h.path); err != nil {
		return 0, err
	}
	defer h.disk.mu.Unlock()
	n := copy(b, h.node.seen[min(off, int64(len(h.node.seen))):])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (h *handle) WriteAt(b []byte, off int64) (int, error) {
	if err := h.begin(Write, h.path); err != nil {
		return 0, err
	}
	defer h.disk.mu.Unlock()
	err := h.disk.fault(Write)
	if err == nil {
		err = h.disk.extend(off + int64(len(b)) - int64(len(h.node.seen)))
	}
	if err != nil { // a part is written
		inside := max(0, min(int64(len(b)), int64(len(h.node.seen))-off)) // which needs no space
		n := int(h.disk.rng.Int64N(inside + 1))
		if n > 0 {
			h.node.write(b[:n], off)
		}
		return n, pathError("write", h.path, err)
	}
	h.node.write(b, off)
	return len(b), nil
}

// Sync implements journal.SegmentWriter.
func (h *handle) Sync() error {
	if err := h.begin(Sync, h.path); err != nil {
		return err
	}
	defer h.disk.mu.Unlock()
	if err := h.disk.fault(Sync); err != nil {
		h.node.loseSectors(h.disk.rng, h.disk.rng.Float64())
		if h.disk.rng.IntN(2) == 0 {
			h.node.seen = extended(slices.Clone(h.node.durable), len(h.node.seen)) // the pages are dropped
		}
		return pathError("sync", h.path, err)
	}
	h.node.sync()
	return nil
}

// Preallocate implements journal.SegmentWriter.
func (h *handle) Preallocate(size int64) error {
	if err := h.begin(Preallocate, h.path); err != nil {
		return err
	}
	defer h.disk.mu.Unlock()
	grow := size - int64(len(h.node.seen))
	if h.disk.NoPreallocation {
		return errors.ErrUnsupported
	}
	if err := h.disk.extend(grow); err != nil {
		return pathError("preallocate", h.path, err)
	}
	if grow > 0 && h.disk.recycle {
		n := min(grow, int64(len(h.disk.recycled)))
		h.node.write(h.disk.recycled[:n], int64(len(h.node.seen)))
		h.disk.recycled = h.disk.recycled[n:]
	}
	h.node.seen = extended(h.node.seen, int(size))
	return nil
}
