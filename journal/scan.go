package journal

import (
	"bytes"
	"errors"
	"io"
)

// maxFailures is the number of reads of a file that may fail before the rest of the file is given up.
const maxFailures = 16

// The reasons why a page is damaged.
var (
	errNoBlock  = errors.New("no block begins here")
	errLength   = errors.New("the block is longer than the file or than a block may be")
	errChecksum = errors.New("wrong checksum")
	errSalt     = errors.New("the block belongs to another file")
	errKind     = errors.New("unknown kind of block")
	errSequence = errors.New("the block's sequence is not after that of the block before it")
)

// zeros is an unwritten page.
var zeros [page]byte

// scanner finds the blocks of one file.
type scanner struct {
	file SegmentReader
	size int64
	at   int64 // offset of the next page to look at
	salt uint64
	any  bool // accept any salt

	buf      []byte // bytes of the file from start
	start    int64
	window   []byte // memory of buf: room for one block
	inRun    bool   // the page before is damaged, and counted
	narrow   bool   // a read of many blocks has failed
	failures int
	failure  error // last error of reading the file
	damage   func(offset int64, err error)
}

// found is an intact block.
type found struct {
	blockHead
	offset  int64
	payload []byte
}

// next returns the next intact block. It calls damage once for each run of damaged pages before it.
func (s *scanner) next() (found, bool) {
	for s.at < s.size && s.failures < maxFailures {
		b, ok := s.bytes(s.at, min(page, s.size-s.at))
		if !ok {
			s.skip(s.failure, false)
			continue
		}
		if allZero(b) {
			s.at += page
			s.inRun = false
			continue
		}
		begins := hasMagic(b) && parseHead(b).salt == s.salt && !s.any
		block, err := s.block(b)
		if err == nil {
			s.at += pages(headSize + int64(block.length))
			s.inRun = false
			return block, true
		}
		s.skip(err, begins)
	}
	return found{}, false
}

// skip reports a damaged page, unless it continues a run and does not begin a block of its own.
func (s *scanner) skip(err error, begins bool) {
	if !s.inRun || begins {
		s.damage(s.at, err)
	}
	s.inRun = true
	s.at += page
}

// block decodes the block of which b is the first page.
func (s *scanner) block(b []byte) (found, error) {
	if !hasMagic(b) {
		return found{}, errNoBlock
	}
	h := parseHead(b)
	length := headSize + int64(h.length)
	switch {
	case h.length > MaxPayload || length > s.size-s.at:
		return found{}, errLength
	case length > int64(len(b)):
		var ok bool
		if b, ok = s.bytes(s.at, length); !ok {
			return found{}, s.failure
		}
	}
	switch b = b[:length]; {
	case checksum(b) != h.sum:
		return found{}, errChecksum
	case h.salt != s.salt && !s.any:
		return found{}, errSalt
	case h.kind == 0:
		return found{}, errKind
	}
	return found{blockHead: h, offset: s.at, payload: b[headSize:]}, nil
}

// bytes returns n bytes of the file from offset at. They are valid until the next call.
func (s *scanner) bytes(at, n int64) ([]byte, bool) {
	if end := s.start + int64(len(s.buf)); at >= s.start && at+n <= end {
		return s.buf[at-s.start:][:n], true
	}
	if !s.narrow {
		if s.fill(at, min(int64(len(s.window)), s.size-at)) == nil {
			return s.buf[:n], true
		}
		s.narrow = true // from now on: a damaged sector does not hide its neighbors
	}
	if err := s.fill(at, n); err != nil {
		s.failures++
		s.failure = err
		return nil, false
	}
	return s.buf, true
}

// fill reads n bytes of the file from offset at into buf.
func (s *scanner) fill(at, n int64) error {
	got, err := s.file.ReadAt(s.window[:n], at)
	s.start, s.buf = at, s.window[:0]
	if int64(got) == n {
		s.buf = s.window[:n]
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// allZero reports whether b, at most a page, has only zeros.
func allZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }
