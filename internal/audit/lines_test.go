package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// kinds returns the kinds of the records in text, with "torn" for each line that is no record.
func kinds(text []byte) (all []string) {
	for line := range bytes.Lines(text) {
		var r Record
		if json.Unmarshal(line, &r) != nil || !bytes.HasSuffix(line, []byte("\n")) {
			r.Kind = "torn"
		}
		all = append(all, r.Kind)
	}
	return all
}

// requireKinds requires records of these kinds in a file.
func requireKinds(t *testing.T, path string, want ...string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if got := kinds(b); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, %v, want %v", path, got, err, want)
	}
}

// counts are the values of a Trail's metrics.
type counts struct{ written, lost, waiting int }

// readCounts returns the metrics that r has collected.
func readCounts(t *testing.T, r *prometheus.Registry) (c counts) {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			switch {
			case f.GetName() == "keyward_audit_records_waiting":
				c.waiting = int(m.GetGauge().GetValue())
			case m.GetLabel()[0].GetValue() == "written":
				c.written = int(m.GetCounter().GetValue())
			default:
				c.lost = int(m.GetCounter().GetValue())
			}
		}
	}
	return c
}

// batch returns records of these kinds.
func batch(kinds ...string) (all []Record) {
	for _, k := range kinds {
		all = append(all, Record{Kind: k})
	}
	return all
}

// TestMissingFileIsNoticed requires that a Trail creates its file again soon after it was removed or renamed.
func TestMissingFileIsNoticed(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"removed": os.Remove,
		"renamed": func(path string) error { return os.Rename(path, path+".moved") },
		"replaced": func(path string) error {
			if err := os.Rename(path, path+".moved"); err != nil {
				return err
			}
			return os.WriteFile(path, nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			synctest.Test(t, func(t *testing.T) {
				l, err := New(Options{Target: path})
				if err != nil {
					t.Fatal(err)
				}
				l.Add(Record{Kind: "first"})
				synctest.Wait()
				requireKinds(t, path, "first")
				if err := remove(path); err != nil {
					t.Fatal(err)
				}
				time.Sleep(checkEvery)
				l.Add(Record{Kind: "second"})
				l.Close()
				requireKinds(t, path, "second")
			})
		})
	}
}

// limitFiles limits the size of files to n bytes until the returned function is called, like a disk that is full.
func limitFiles(t *testing.T, n int) (free func()) {
	t.Helper()
	var former syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &former); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(n), Max: former.Max}); err != nil {
		t.Skip(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &former); err != nil {
			t.Error(err)
		}
		signal.Reset(syscall.SIGXFSZ)
	}
}

// TestFullDisk requires that no part of a record remains in a file on a full disk, or that it has a line of its own if
// it cannot be removed, and that each record is counted as what it is.
func TestFullDisk(t *testing.T) {
	for name, shared := range map[string]bool{"alone": false, "another process appends": true} {
		t.Run(name, func(t *testing.T) {
			path, reg := filepath.Join(t.TempDir(), "audit.log"), prometheus.NewRegistry()
			l := start(Options{Registerer: reg}, &lines{path: path, maxSize: maxFileSize}, 1)
			l.Close()
			l.write(t.Context(), batch("first"))
			about, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			line := int(about.Size())
			want := []string{"first", "other", "kind2", "kind3"}
			if shared {
				other, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(other, `{"kind":"other"}`)
				_ = other.Close()
				want = append(want, "torn")
			} else {
				want = append(want[:1], want[2:]...)
			}
			if about, err = os.Stat(path); err != nil {
				t.Fatal(err)
			}
			free := limitFiles(t, int(about.Size())+2*line+line/2)
			l.write(t.Context(), batch("kind2", "kind3", "kind4", "kind5"))
			free()
			l.write(t.Context(), batch("kind6"))
			requireKinds(t, path, append(want, "kind6")...)
			b, _ := os.ReadFile(path)
			if !bytes.Contains(b, []byte(`"lost":2}`)) {
				t.Errorf("%s: want 2 lost", b)
			}
			if got := readCounts(t, reg); got.written != 4 || got.lost != 2 {
				t.Errorf("%+v, want 4 written, 2 lost", got)
			}
		})
	}
}

// TestTornLine requires that a record does not continue a line that a member left incomplete when it crashed.
func TestTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(`{"kind":"fir`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"second", "third"} {
		l, err := New(Options{Target: path})
		if err != nil {
			t.Fatal(err)
		}
		l.Add(Record{Kind: kind})
		l.Close()
	}
	requireKinds(t, path, "torn", "second", "third")
}

// TestLinksAreNotRotated requires that a target that is no regular file is never renamed, like /dev/stdout.
func TestLinksAreNotRotated(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	for name, target := range map[string]string{"device": os.DevNull, "regular": file} {
		path := filepath.Join(dir, name)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		l := start(Options{}, &lines{path: path, maxSize: 150}, 1)
		l.Close()
		for range 3 {
			l.write(t.Context(), batch("lease"))
		}
		if to, err := os.Readlink(path); err != nil || to != target {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(path + ".1"); err == nil {
			t.Errorf("%s was renamed", name)
		}
	}
	requireKinds(t, file, "lease", "lease", "lease")
}

// TestTargets requires that targets to which no record can be written are refused at once.
func TestTargets(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{pipe: "no process reads this pipe", dir: "is a directory"} {
		l, err := New(Options{Target: target})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", target, err)
		}
		l.Close()
	}
}

// TestPipeWithoutProgress requires that a Trail ends while the reader of its pipe takes nothing, and that it counts as
// written the records that are complete in the pipe.
func TestPipeWithoutProgress(t *testing.T) {
	path, reg := filepath.Join(t.TempDir(), "pipe"), prometheus.NewRegistry()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	l, err := New(Options{Target: path, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	const n = 5000 // more than a pipe's buffer
	for range n {
		l.Add(Record{Kind: "lease", Key: strings.Repeat("k", 200)})
	}
	l.cancel() // as Close does after a while
	l.Close()
	got := readCounts(t, reg)
	text := make([]byte, 2*n*300)
	size, _ := reader.Read(text)
	for more := size; more > 0; size += more {
		more, _ = reader.Read(text[size:])
	}
	complete := bytes.Count(text[:size], []byte("\n"))
	if got.written != complete || got.lost != n-complete || got.waiting != 0 {
		t.Errorf("%+v, %d records in the pipe", got, complete)
	}
}
