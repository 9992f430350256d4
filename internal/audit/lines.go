package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// checkEvery is how often a file's path is compared with the open file.
const checkEvery = time.Second

// lines writes records as lines of JSON to a file, a pipe or a character device.
type lines struct {
	path    string      // empty: file is not opened or closed here
	file    *os.File    // nil: to be opened
	about   fs.FileInfo // of file, when it was opened
	size    int64       // of file, without what other processes wrote since it was checked
	maxSize int64
	checked time.Time // when path was compared with file
	torn    bool      // the last line is not complete: the next one begins with a newline
	buf     bytes.Buffer
}

// open opens the file to append to it. It does not wait for the reader of a pipe.
func (f *lines) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		if about, e := os.Stat(f.path); e == nil && about.Mode()&fs.ModeNamedPipe != 0 && errors.Is(err, syscall.ENXIO) {
			return fmt.Errorf("open %s: no process reads this pipe", f.path)
		}
		return err
	}
	about, err := file.Stat()
	if err == nil && !about.Mode().IsRegular() && about.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) == 0 {
		err = fmt.Errorf("open %s: want a regular file, a pipe or a character device", f.path)
	}
	if err != nil {
		_ = file.Close()
		return err
	}
	f.file, f.about, f.size, f.checked = file, about, about.Size(), time.Now()
	if about.Mode().IsRegular() {
		f.torn = f.size > 0 && endsTorn(f.path, f.size, f.torn)
	}
	return nil
}

// endsTorn reports whether the file at path, of the given size, ends with a line that is not complete, as after a
// crash. It returns unknown if it cannot read the file.
func endsTorn(path string, size int64, unknown bool) bool {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return unknown
	}
	defer file.Close()
	var last [1]byte
	if _, err := file.ReadAt(last[:], size-1); err != nil {
		return unknown
	}
	return last[0] != '\n'
}

// write implements sink. A regular file that would exceed the size is renamed to PATH.1 before.
func (f *lines) write(ctx context.Context, records []Record) (int, error) {
	f.buf.Reset()
	f.buf.WriteByte('\n')
	enc := json.NewEncoder(&f.buf)
	enc.SetEscapeHTML(false)
	for i := range records {
		if err := enc.Encode(&records[i]); err != nil {
			return 0, err
		}
	}
	if err := f.prepare(int64(f.buf.Len())); err != nil {
		return 0, err
	}
	data := f.buf.Bytes()
	if !f.torn {
		data = data[1:]
	}
	n, err := f.writeAll(ctx, data)
	written := bytes.Count(data[:n], []byte("\n"))
	if f.torn && n > 0 {
		written-- // the newline that ends the torn line
	}
	if n > 0 {
		f.torn = data[n-1] != '\n'
	}
	if f.size += int64(n); err != nil {
		f.undo(int64(n - 1 - bytes.LastIndexByte(data[:n], '\n')))
		return written, err
	}
	return written, nil
}

// writeAll writes data, or a part of it until ctx ends.
func (f *lines) writeAll(ctx context.Context, data []byte) (int, error) {
	if f.path == "" || f.about.Mode().IsRegular() {
		return f.file.Write(data)
	}
	file := f.file
	defer context.AfterFunc(ctx, func() { _ = file.SetWriteDeadline(time.Unix(1, 0)) })()
	return file.Write(data)
}

// prepare opens the file if it is not open, or not the one at its path any more, or if n more bytes exceed its size.
func (f *lines) prepare(n int64) error {
	if f.path == "" {
		return nil
	}
	full := f.file != nil && f.size > 0 && f.size+n > f.maxSize
	if f.file != nil && (full || time.Since(f.checked) >= checkEvery) {
		f.check()
	}
	if full && f.file != nil {
		if err := f.rotate(n); err != nil {
			return err
		}
	}
	if f.file == nil {
		return f.open()
	}
	return nil
}

// check closes the file if the path leads to another one, or to none: it was removed or renamed.
func (f *lines) check() {
	about, err := os.Stat(f.path)
	if f.checked = time.Now(); err != nil || !os.SameFile(about, f.about) {
		f.close()
		return
	}
	f.size = about.Size()
}

// rotate renames the file if n more bytes exceed its size. A link, like /dev/stdout, is never renamed.
func (f *lines) rotate(n int64) error {
	if f.size == 0 || f.size+n <= f.maxSize || !isRegular(f.path) {
		return nil
	}
	f.close()
	if err := os.Rename(f.path, f.path+".1"); err != nil {
		return fmt.Errorf("rotate the audit log: %w", err)
	}
	return nil
}

// isRegular reports whether path is a regular file, and no link to one.
func isRegular(path string) bool {
	about, err := os.Lstat(path)
	return err == nil && about.Mode().IsRegular()
}

// undo removes the n bytes of a line that is not complete from the end of the file, after a write that failed, and
// makes the next write open the file again. If it cannot remove them, as from a pipe, the next line begins with a
// newline.
func (f *lines) undo(n int64) {
	if f.path == "" {
		return
	}
	// Bytes that another process has appended are never removed.
	about, err := f.file.Stat()
	if n > 0 && err == nil && about.Mode().IsRegular() && about.Size() == f.size && f.file.Truncate(f.size-n) == nil {
		f.torn = false
	}
	f.close()
}

// close implements sink.
func (f *lines) close() {
	if f.path != "" && f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
}
