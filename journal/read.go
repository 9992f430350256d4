package journal

import (
	"errors"
	"fmt"
	"path/filepath"
)

// maxErrors is the number of errors that a LoadReport lists.
const maxErrors = 64

// Block is a payload that was read.
type Block struct {
	Payload    []byte // valid only during the call of visit
	Sequence   uint64
	Generation uint32
	File       string // path of the segment
	Offset     int64  // of the block in the file
}

// LoadReport describes what Read has found.
type LoadReport struct {
	Files  int   // segments, unreadable ones included
	Blocks int   // that were delivered
	Bytes  int64 // of payload that were delivered
	// BadBlocks is the number of blocks that were skipped because they are damaged. Contiguous damage without a
	// recognizable block counts once.
	BadBlocks int
	// MissingBlocks is the number of blocks that are absent between others of their generation, bad ones included.
	// Those of generations before a complete one do not count.
	MissingBlocks uint64
	// UnreadableFiles is the number of segments with an I/O error, a damaged header, or another version, label, boot or
	// scheme, and of files that are not the journal's.
	UnreadableFiles int
	// Errors has the first 64 errors. Each names a file, and an offset if it concerns one.
	Errors []error
	// Complete reports whether a generation was read without a gap up to its end block, so that the blocks include
	// everything that the boot had counted before it.
	Complete bool
	// Clean reports whether the boot has stopped in good order and everything that it has written was read.
	Clean bool
}

// state describes how a segment can be read, judged by its header.
type state uint8

// The states of segments.
const (
	stateGood    state = iota // the header is readable and ours
	stateEmpty                // the file has no bytes
	stateDamaged              // the first page is no header
	stateForeign              // the header is of another version, label, boot or scheme, or the file has another name
	stateFailed               // the file cannot be read
)

// stored is a segment on disk.
type stored struct {
	name            string
	generation      uint32
	segment         uint32
	state           state
	err             error // why it is damaged, foreign or failed
	scheme          uint32
	salt            uint64
	first           uint64 // Header.First
	generationFirst uint64
	data            int64 // offset of the first block after the header
}

// open opens a segment and returns a scanner at its start.
func (r *BootReader) open(f *stored) (*scanner, error) {
	file, err := r.boot.fs.Open(filepath.Join(r.boot.path, f.name))
	if err != nil {
		return nil, err
	}
	size, err := file.Size()
	if err != nil {
		file.Close()
		return nil, err
	}
	if room := min(pages(size), maxBlock); int64(len(r.buf)) < room {
		r.buf = make([]byte, room)
	}
	return &scanner{file: file, size: size, window: r.buf, damage: func(int64, error) {}}, nil
}

// inspect reads the header of a segment.
func (r *BootReader) inspect(f *stored) {
	s, err := r.open(f)
	if err != nil {
		f.state, f.err = stateFailed, err
		return
	}
	defer s.file.Close()
	if s.size == 0 {
		f.state = stateEmpty
		return
	}
	s.any = true
	b, ok := s.bytes(0, min(page, s.size))
	if !ok {
		f.state, f.err = stateFailed, s.failure
		return
	}
	block, err := s.block(b)
	if err == nil && block.kind != kindHeader {
		err = errKind
	}
	if err != nil {
		f.state, f.err = stateDamaged, fmt.Errorf("header: %w", err)
		return
	}
	h, err := parseHeader(block.payload)
	if err == nil {
		err = r.check(f, &h)
	}
	if err != nil {
		f.state, f.err = stateForeign, err
		return
	}
	f.scheme, f.salt, f.first, f.generationFirst = h.Scheme, block.salt, h.First, h.GenerationFirst
	f.data = pages(headSize + int64(block.length))
	r.header, r.good = h, true
}

// check returns an error if a header is not that of the segment f of this boot.
func (r *BootReader) check(f *stored, h *Header) error {
	switch {
	case h.label != r.boot.label:
		return errors.New("the header has another label")
	case h.Boot != r.boot.ID:
		return fmt.Errorf("the header is of boot %016x", h.Boot)
	case h.Generation != f.generation || h.Segment != f.segment:
		return fmt.Errorf("the header is of file %s", segmentName(h.Generation, h.Segment))
	}
	return nil
}

// tally accumulates a LoadReport.
type tally struct {
	LoadReport
	generation uint32
	begun      bool   // a block or header of the generation was read
	expected   uint64 // sequence of the generation's next block
	older      uint64 // missing blocks of older generations
	missing    uint64 // of this generation
	clean      bool   // the last block was a clean block
}

// Read calls visit for every intact data block, in the order of generations, segments and offsets. It stops at the
// first error of visit and returns it; all other errors are in the report only. Read may be repeated.
func (r *BootReader) Read(visit func(Block) error) (LoadReport, error) {
	r.finished = false
	t := &tally{LoadReport: LoadReport{Files: len(r.files)}}
	for _, name := range r.unknown {
		t.unreadable(filepath.Join(r.boot.path, name), errors.New("not the name of a segment"))
	}
	for _, f := range r.files {
		if err := r.readFile(f, t, visit); err != nil {
			return t.report(), err
		}
	}
	r.finished, r.readable = true, t.UnreadableFiles == 0
	return t.report(), nil
}

// readFile reads one segment.
func (r *BootReader) readFile(f *stored, t *tally, visit func(Block) error) error {
	path := filepath.Join(r.boot.path, f.name)
	switch f.state {
	case stateEmpty:
		return nil
	case stateForeign, stateFailed:
		t.unreadable(path, f.err)
		return nil
	case stateDamaged:
		if err := r.salvage(f); err != nil {
			t.unreadable(path, err)
			return nil
		}
	}
	s, err := r.open(f)
	if err != nil {
		t.unreadable(path, err)
		return nil
	}
	defer s.file.Close()
	s.at, s.salt, s.any = f.data, f.salt, r.sabotage == bugIgnoreSalt
	s.damage = func(offset int64, err error) { t.bad(path, offset, err) }
	t.header(f)
	for {
		b, ok := s.next()
		if !ok {
			break
		}
		if err := t.block(f, path, &b, visit); err != nil {
			return err
		}
		if r.sabotage == bugNoPageSkip && t.BadBlocks > 0 {
			break
		}
	}
	if s.failure != nil {
		t.unreadable(path, s.failure)
	}
	return nil
}

// salvage finds out how to read a segment without a header: its blocks have the same salt, and the directory names the
// label and the boot. It returns an error if the segment may hold blocks that cannot be read.
func (r *BootReader) salvage(f *stored) error {
	s, err := r.open(f)
	if err != nil {
		return err
	}
	defer s.file.Close()
	start, ok := s.bytes(0, min(int64(len(magic)), s.size))
	torn := ok // a header that was not written completely: it begins with the magic, a part of it, or zeros
	for i, c := range start {
		torn = torn && (c == magic[i] || c == 0)
	}
	s.any = true
	blocks := 0
	for {
		b, ok := s.next()
		if !ok {
			break
		}
		if blocks > 0 && b.salt != f.salt {
			return fmt.Errorf("%w; blocks of several files", f.err)
		}
		f.salt = b.salt
		blocks++
	}
	switch {
	case s.failure != nil:
		return s.failure
	case blocks == 0 && !torn:
		return f.err
	}
	return nil
}

// header records that the segment f begins.
func (t *tally) header(f *stored) {
	if t.generation != f.generation || !t.begun {
		t.older += t.missing
		t.generation, t.begun, t.missing, t.expected = f.generation, false, 0, 0
	}
	if f.state != stateGood {
		return
	}
	t.clean = false
	if !t.begun {
		t.begun, t.expected = true, f.generationFirst
	}
	t.advance(f.first)
}

// advance counts the blocks of the generation that are missing before the one with that sequence.
func (t *tally) advance(sequence uint64) {
	if sequence > t.expected {
		t.missing += sequence - t.expected
		t.expected = sequence
	}
}

// block records an intact block and delivers it.
func (t *tally) block(f *stored, path string, b *found, visit func(Block) error) error {
	if !t.begun {
		t.begun, t.expected = true, b.sequence
	}
	if b.kind == kindHeader {
		t.bad(path, b.offset, errKind)
		return nil
	}
	if b.sequence < t.expected {
		t.bad(path, b.offset, errSequence)
		return nil
	}
	t.advance(b.sequence)
	t.expected = b.sequence + 1
	t.clean = b.kind == kindClean
	if b.kind == kindEnd && t.missing == 0 {
		t.older, t.Complete = 0, true
	}
	if b.kind != kindData {
		return nil
	}
	t.Blocks++
	t.Bytes += int64(len(b.payload))
	return visit(Block{
		Payload: b.payload, Sequence: b.sequence, Generation: f.generation, File: path, Offset: b.offset,
	})
}

// bad counts a damaged block.
func (t *tally) bad(path string, offset int64, err error) {
	t.BadBlocks++
	t.addError(fmt.Errorf("%s: offset %d: %w", path, offset, err))
}

// unreadable counts a file that cannot be read.
func (t *tally) unreadable(path string, err error) {
	t.UnreadableFiles++
	t.addError(fmt.Errorf("%s: %w", path, err))
}

// addError adds an error to the list, if there is room.
func (t *tally) addError(err error) {
	if len(t.Errors) < maxErrors {
		t.Errors = append(t.Errors, err)
	}
}

// report returns the finished report.
func (t *tally) report() LoadReport {
	r := t.LoadReport
	r.MissingBlocks = t.older + t.missing
	r.Clean = t.clean && r.BadBlocks == 0 && r.MissingBlocks == 0 && r.UnreadableFiles == 0
	return r
}
