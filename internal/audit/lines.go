package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// lines writes records as lines of JSON to a file.
type lines struct {
	path    string   // empty: file is not opened or closed here
	file    *os.File // nil: to be opened
	size    int64
	maxSize int64
	buf     bytes.Buffer
}

// open opens the file to append to it.
func (f *lines) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	about, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return err
	}
	f.file, f.size = file, about.Size()
	return nil
}

// write implements sink. A file that would exceed the size is renamed to PATH.1 before.
func (f *lines) write(_ context.Context, records []Record) error {
	f.buf.Reset()
	enc := json.NewEncoder(&f.buf)
	enc.SetEscapeHTML(false)
	for i := range records {
		if err := enc.Encode(&records[i]); err != nil {
			return err
		}
	}
	if f.path != "" && f.file != nil && f.size > 0 && f.size+int64(f.buf.Len()) > f.maxSize {
		f.close()
		if err := os.Rename(f.path, f.path+".1"); err != nil {
			return fmt.Errorf("rotate the audit log: %w", err)
		}
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	n, err := f.file.Write(f.buf.Bytes())
	if f.size += int64(n); err != nil {
		f.undo(n)
	}
	return err
}

// undo removes the n bytes of a write that failed from the end of the file, so that no part of a record remains, and
// makes the next write open the file again.
func (f *lines) undo(n int) {
	if f.path == "" {
		return
	}
	if about, err := f.file.Stat(); err == nil && n > 0 && about.Mode().IsRegular() {
		_ = f.file.Truncate(about.Size() - int64(n))
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
