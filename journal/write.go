package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
)

// reserve is the space at a segment's end that data leaves for the end block and the clean block.
const reserve = 2 * page

// generation is the set of files that one Begin has started.
type generation struct {
	number    uint32
	segments  []*segment
	complete  bool
	confirmed bool // a caller may rely on a block in it
	failed    bool // nothing in it is confirmed any more
}

// segment is one file of a generation.
type segment struct {
	path  string
	file  SegmentWriter // nil: closed
	salt  uint64
	end   int64 // offset of the next block
	size  int64 // of the file on disk
	dirty bool  // has blocks that were not synced
}

// close closes the segment's file. Blocks that were not synced are never confirmed.
func (s *segment) close() {
	if s.file != nil {
		s.file.Close()
	}
	s.file, s.dirty = nil, false
}

// last returns the segment to which blocks are appended, or nil if there is none.
func (g *generation) last() *segment {
	if len(g.segments) == 0 {
		return nil
	}
	return g.segments[len(g.segments)-1]
}

// closeSynced closes the files to which nothing has to be synced.
func (g *generation) closeSynced() {
	for _, s := range g.segments {
		if !s.dirty {
			s.close()
		}
	}
}

// all returns the generations with files on disk, oldest first.
func (j *Journal) all() iter.Seq[*generation] {
	return func(yield func(*generation) bool) {
		for _, g := range j.older {
			if !yield(g) {
				return
			}
		}
		if j.current != nil {
			yield(j.current)
		}
	}
}

// closeFiles closes all files.
func (j *Journal) closeFiles() {
	for g := range j.all() {
		for _, s := range g.segments {
			s.close()
		}
	}
}

// publish updates what Status returns.
func (j *Journal) publish() {
	s := Status{Stopped: j.stopped, Failed: j.failed, Cleanup: j.cleanup}
	for g := range j.all() {
		s.Segments += len(g.segments)
		for _, f := range g.segments {
			s.Bytes += f.size
		}
	}
	if g := j.current; g != nil {
		s.Generation, s.Complete = g.number, g.complete
		for _, f := range g.segments {
			s.Current += f.end
		}
	}
	j.mu.Lock()
	j.status = s
	j.mu.Unlock()
}

// room reports whether one more segment respects the maximum size. Every segment counts with its maximum size, so that
// those that grow have room.
func (j *Journal) room() bool {
	n := int64(1)
	for g := range j.all() {
		n += int64(len(g.segments))
	}
	return n*j.o.SegmentBytes <= j.o.MaxBytes || j.sabotage == bugIgnoreMax
}

// spaceAfter returns the bytes of a segment after its header, and an error if they have no room for blocks.
func (j *Journal) spaceAfter(h *Header) (int64, error) {
	b, err := appendHeader(j.buf[:0], h)
	if err != nil {
		return 0, err
	}
	space := j.o.SegmentBytes - pages(headSize+int64(len(b)))
	if len(b) > MaxPayload || space < page+reserve {
		return 0, fmt.Errorf("header of %d bytes: %w", len(b), ErrTooLarge)
	}
	return space, nil
}

// startGeneration makes g's first file durable. After an error it removes the file.
func (j *Journal) startGeneration(g *generation) error {
	err := j.addSegment(g)
	if err == nil {
		err = j.sync([]*generation{g})
	}
	g.confirmed = false // nothing of the caller's is in it
	if err == nil {
		return nil
	}
	if !j.removeSegments(g) {
		j.older = append(j.older, g) // the next collect tries again
	}
	return err
}

// addSegment creates g's next file with its header. After an error the file may exist in part; it is in g.segments
// then.
func (j *Journal) addSegment(g *generation) error {
	h := j.header
	h.Segment, h.First = uint32(len(g.segments)), j.next
	path := filepath.Join(j.dir, segmentName(g.number, h.Segment))
	f, err := j.o.FS.Create(path)
	if err != nil {
		return err
	}
	s := &segment{path: path, file: f, salt: j.o.Salt()}
	g.segments = append(g.segments, s)
	j.newNames = true
	if err := f.Preallocate(j.o.SegmentBytes); err == nil {
		s.size = j.o.SegmentBytes
	} else if !errors.Is(err, errors.ErrUnsupported) {
		s.size = j.o.SegmentBytes // it may have been extended all the same
		return err
	}
	b, err := appendHeader(append(j.buf[:0], make([]byte, headSize)...), &h)
	if err != nil {
		return err
	}
	j.buf = b
	return j.put(s, kindHeader, len(b)-headSize)
}

// write appends a block to the current generation, in a new segment if necessary.
func (j *Journal) write(k kind, payload []byte) error {
	need := pages(headSize + int64(len(payload)))
	if k == kindData {
		need += reserve
	}
	if s := j.current.last(); s.end+need > j.o.SegmentBytes {
		if need > j.space {
			return ErrTooLarge
		}
		if !j.room() {
			return ErrFull
		}
		if err := j.addSegment(j.current); err != nil {
			return j.fail(err)
		}
		if !s.dirty {
			s.close()
		}
	}
	j.buf = append(append(j.buf[:0], make([]byte, headSize)...), payload...)
	err := j.put(j.current.last(), k, len(payload))
	j.next++ // also after an error: the block may be on disk
	if err != nil {
		return j.fail(err)
	}
	return nil
}

// put writes the block of which j.buf holds the payload, after room for its head.
func (j *Journal) put(s *segment, k kind, length int) error {
	sealBlock(j.buf, k, length, j.next, s.salt)
	size := int(pages(int64(len(j.buf))))
	j.buf = append(j.buf, make([]byte, size-len(j.buf))...)
	s.dirty = true
	n, err := s.file.WriteAt(j.buf, s.end)
	s.size = max(s.size, s.end+int64(size))
	if err == nil && n != size {
		err = &fs.PathError{Op: "write", Path: s.path, Err: io.ErrShortWrite}
	}
	if err != nil {
		return err
	}
	s.end += int64(size)
	return nil
}

// sync makes the blocks of some generations and the names of their files durable.
func (j *Journal) sync(generations []*generation) error {
	newest := generations[len(generations)-1]
	for _, g := range generations {
		for _, s := range g.segments {
			if !s.dirty || j.sabotage == bugForgetOlder && g != newest {
				continue
			}
			if err := j.syncSegment(s); err != nil && j.sabotage == bugRetrySync {
				return err
			} else if err != nil {
				return j.fail(err)
			}
			if g != newest || s != g.last() {
				s.close() // nothing is appended to it
			}
		}
	}
	if j.newNames && j.sabotage != bugNoDirSync {
		if err := j.o.FS.SyncDir(j.dir); err != nil {
			return j.fail(err)
		}
		j.newNames = false
	}
	if err := j.exists(newest); err != nil {
		return j.fail(err)
	}
	for _, g := range generations {
		g.confirmed = g.confirmed || !g.failed
	}
	return nil
}

// syncSegment makes the blocks of one segment durable.
func (j *Journal) syncSegment(s *segment) error {
	if j.sabotage == bugConfirmUnsynced {
		return nil
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.dirty = false
	return nil
}

// collect removes the generations that are not needed: those before a complete one, and failed ones in which nothing
// was confirmed. The removals become durable with the next sync.
func (j *Journal) collect() {
	var kept []*generation
	complete := uint32(0)
	for g := range j.all() {
		if g.complete {
			complete = g.number
		}
	}
	j.cleanup = nil
	for g := range j.all() {
		needed := g.complete || !g.failed || g.confirmed && j.sabotage != bugRemoveFailed
		if needed && g.number >= complete || !j.removeSegments(g) {
			kept = append(kept, g)
		}
	}
	if n := len(kept); n > 0 && kept[n-1] == j.current {
		kept = kept[:n-1]
	} else {
		j.current = nil
	}
	j.older = kept
}

// removeSegments removes g's files, the last first, and reports whether none remains.
func (j *Journal) removeSegments(g *generation) bool {
	for len(g.segments) > 0 {
		s := g.last()
		s.close()
		if err := j.o.FS.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			j.cleanup = err
			return false
		}
		j.newNames = true
		g.segments = g.segments[:len(g.segments)-1]
	}
	return true
}
