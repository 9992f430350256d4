package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/keyward/keyward/internal/config"
)

// put writes a file and the directories above it.
func put(t testing.TB, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// link replaces a symlink atomically, as `ln -sfn` and Kubernetes do.
func link(t testing.TB, to, path string) {
	t.Helper()
	tmp := path + "_tmp"
	if err := errors.Join(os.Symlink(to, tmp), os.Rename(tmp, path)); err != nil {
		t.Fatal(err)
	}
}

// watching starts WatchFiles and returns its results. It ends with the test.
func watching(t *testing.T, o FileOptions) <-chan LoadResult {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, done := make(chan LoadResult, 100), make(chan struct{})
	go func() {
		defer close(done)
		WatchFiles(ctx, o, func(e LoadResult) { events <- e })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return events
}

// until waits for a result with the given outcome, and skips others: a write may be seen when it is half done.
func until(t *testing.T, events <-chan LoadResult, want string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	var seen []string
	for {
		select {
		case e := <-events:
			if got := outcome(e); got == want {
				return
			} else {
				seen = append(seen, got)
			}
		case <-deadline:
			t.Fatalf("no event %q; there were %q", want, seen)
		}
	}
}

// outcome returns the text of the error, or the domains that were loaded.
func outcome(e LoadResult) string {
	if e.Err != nil {
		return e.Err.Error()
	}
	domains := slices.Clone(e.Rules.Domains())
	slices.Sort(domains)
	return strings.Join(domains, " ")
}

// notified returns options with which only notifications report changes.
func notified(root string) FileOptions {
	return FileOptions{Root: root, Debounce: 5 * time.Millisecond, Poll: time.Hour}
}

func TestWatchDirectory(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "sub", "config")
	put(t, filepath.Join(dir, "a.yaml"), yamlOf("a", 1))
	o := notified(root)
	o.Subdirectory = "sub"
	events := watching(t, o)
	until(t, events, "a")

	put(t, filepath.Join(dir, "no-suffix"), yamlOf("b", 1))
	until(t, events, "a b")
	put(t, filepath.Join(dir, "deeper", "c.txt"), yamlOf("c", 1))
	until(t, events, "a b c")
	put(t, filepath.Join(dir, "deeper", "d.txt"), yamlOf("d", 1)) // a directory that did not exist at the start
	until(t, events, "a b c d")
	put(t, filepath.Join(dir, "deeper", "d.txt"), yamlOf("", 1))
	until(t, events, "deeper.d.txt: config file cannot have empty domain")
	put(t, filepath.Join(dir, "deeper", "d.txt"), yamlOf("e", 1))
	until(t, events, "a b c e")
	if err := os.RemoveAll(filepath.Join(dir, "deeper")); err != nil {
		t.Fatal(err)
	}
	until(t, events, "a b")
	if err := errors.Join(os.Remove(filepath.Join(dir, "a.yaml")), os.Remove(filepath.Join(dir, "no-suffix"))); err != nil {
		t.Fatal(err)
	}
	until(t, events, "")
}

// A mounted ConfigMap: files are symlinks into ..data, which is replaced.
func TestWatchConfigMap(t *testing.T) {
	for _, ignore := range []bool{true, false} {
		t.Run(fmt.Sprintf("ignore dot files %v", ignore), func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "config")
			put(t, filepath.Join(dir, "..2026_1", "rules.yaml"), yamlOf("a", 1))
			link(t, "..2026_1", filepath.Join(dir, "..data"))
			link(t, filepath.Join("..data", "rules.yaml"), filepath.Join(dir, "rules.yaml"))
			o := notified(root)
			o.IgnoreDotFiles = ignore
			events := watching(t, o)
			until(t, events, "a")
			put(t, filepath.Join(dir, "..2026_2", "rules.yaml"), yamlOf("b", 1))
			link(t, "..2026_2", filepath.Join(dir, "..data"))
			if err := os.RemoveAll(filepath.Join(dir, "..2026_1")); err != nil {
				t.Fatal(err)
			}
			until(t, events, "b")
		})
	}
}

func TestWatchRoot(t *testing.T) {
	base := t.TempDir()
	for _, v := range []string{"one", "two"} {
		put(t, filepath.Join(base, v, "sub", "config", "rules.yaml"), yamlOf(v, 1))
		put(t, filepath.Join(base, v, "sub", "config.more"), yamlOf(v+"-more", 1))
		put(t, filepath.Join(base, v, "sub", "configured", "not.yaml"), yamlOf("never", 1))
		put(t, filepath.Join(base, v, "sub", "other.yaml"), "not: rules")
	}
	root := filepath.Join(base, "current")
	link(t, "one", root)
	o := notified(root)
	o.Subdirectory, o.WatchRoot = "sub", true
	events := watching(t, o)
	until(t, events, "one one-more")
	link(t, "two", root)
	until(t, events, "two two-more")
	put(t, filepath.Join(base, "one", "sub", "config", "rules.yaml"), "domain: [")
	link(t, "one", root)
	e := <-events
	if e.Err == nil || !strings.HasPrefix(e.Err.Error(), "config.rules.yaml: error loading config file: ") {
		t.Errorf("a bad file: %v", outcome(e))
	}
}

// With WatchRoot a change in place has no effect until the next swap: neither a notification nor a poll reports it.
func TestWatchRootInPlace(t *testing.T) {
	base := t.TempDir()
	put(t, filepath.Join(base, "one", "config", "rules.yaml"), yamlOf("a", 1))
	root := filepath.Join(base, "current")
	link(t, "one", root)
	var got []string
	w := &fileWatch{o: FileOptions{Root: root, WatchRoot: true}.withDefaults(), sink: func(e LoadResult) { got = append(got, outcome(e)) }}
	w.dir, w.prefix = w.o.tree()
	w.load()
	file := filepath.Join(base, "one", "config", "rules.yaml")
	put(t, file, yamlOf("b", 1))
	w.poll()
	for _, name := range []string{file, filepath.Join(root, "config", "rules.yaml"), root + "_tmp"} {
		if w.concerns(fsnotify.Event{Name: name, Op: fsnotify.Write}) {
			t.Errorf("a change of %s is a reason to load", name)
		}
	}
	if fmt.Sprint(got) != "[a]" {
		t.Errorf("loads: %v", got)
	}
	link(t, "./one", root) // to the same directory again, which is also a swap
	w.poll()
	if fmt.Sprint(got) != "[a b]" {
		t.Errorf("loads after a swap: %v", got)
	}
}

func TestWatchPolls(t *testing.T) {
	for _, watchRoot := range []bool{false, true} {
		t.Run(fmt.Sprintf("watch root %v", watchRoot), func(t *testing.T) {
			base := t.TempDir()
			root := filepath.Join(base, "not", "yet")
			events := watching(t, FileOptions{Root: root, WatchRoot: watchRoot, Poll: 10 * time.Millisecond, Debounce: time.Millisecond})
			if e := <-events; !errors.Is(e.Err, os.ErrNotExist) || !strings.Contains(e.Err.Error(), root) {
				t.Errorf("no directory: %v", outcome(e))
			}
			// Complete directories appear atomically: with WatchRoot nothing is reloaded while one is being filled.
			for _, domain := range []string{"a", "b"} {
				made := filepath.Join(base, domain)
				put(t, filepath.Join(made, "config", "rules"), yamlOf(domain, 1))
				err := errors.Join(os.MkdirAll(filepath.Dir(root), 0o755), os.RemoveAll(root), os.Rename(made, root))
				if err != nil {
					t.Fatal(err)
				}
				until(t, events, domain)
			}
		})
	}
}

// An attempt is reported once for each content, also if it fails; a success after a fault is reported.
func TestLoadReportsChanges(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "config", "a")
	var got []string
	merge := false
	o := FileOptions{Root: root, Config: func() config.Options { return config.Options{MergeDomains: merge} }}
	w := &fileWatch{o: o.withDefaults(), sink: func(e LoadResult) { got = append(got, outcome(e)) }}
	w.dir, w.prefix = w.o.tree()
	steps := []struct {
		name string
		do   func()
		want []string
	}{
		{"first", func() { put(t, file, yamlOf("a", 1)) }, []string{"a"}},
		{"same again", func() { put(t, file, yamlOf("a", 1)) }, nil},
		{"another limit", func() { put(t, file, yamlOf("a", 2)) }, []string{"a"}},
		{"bad", func() { put(t, file, yamlOf("''", 2)) }, []string{"a: config file cannot have empty domain"}},
		{"still bad", func() {}, nil},
		{"good again", func() { put(t, file, yamlOf("a", 2)) }, []string{"a"}},
		{"twice the domain", func() { put(t, file+"2", yamlOf("a", 2)) }, []string{"a2: duplicate domain 'a' in config file"}},
		{"domains merge now", func() { merge = true; put(t, file+"2", "domain: a") }, []string{"a"}},
		{"a loop of symlinks", func() { os.Remove(file + "2"); link(t, "loop", filepath.Join(root, "config", "loop")) }, []string{"too many levels of symbolic links"}},
		{"still a loop", func() {}, nil},
		{"gone", func() { os.Remove(filepath.Join(root, "config", "loop")) }, []string{"a"}},
	}
	for _, s := range steps {
		got = nil
		s.do()
		w.load()
		if len(got) != len(s.want) || len(got) == 1 && !strings.HasSuffix(got[0], s.want[0]) {
			t.Errorf("%s: %q, want %q", s.name, got, s.want)
		}
	}
}

func TestScan(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a.yaml", ".hidden", ".dir/x", "..data/y", "x/y/z", "x.y.z", "x/.h"} {
		put(t, filepath.Join(dir, name), name)
	}
	link(t, "nowhere", filepath.Join(dir, "dangling"))
	link(t, "x", filepath.Join(dir, "linked"))
	link(t, "b", filepath.Join(dir, "alias"))
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		noDots bool
		prefix string
		want   string
	}{
		{false, "", "[.dir.x=.dir/x .hidden=.hidden a.yaml=a.yaml alias=b b=b x..h=x/.h x.y.z=x.y.z]"},
		{true, "", "[a.yaml=a.yaml alias=b b=b x.y.z=x.y.z]"},
		{true, "x.", "[x.y.z=x.y.z]"},
	}
	for _, tt := range tests {
		w := &fileWatch{o: FileOptions{IgnoreDotFiles: tt.noDots}.withDefaults(), dir: dir, prefix: tt.prefix}
		files, _, err := w.read()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range files {
			got = append(got, f.Name+"="+string(f.Content))
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("dots left out %v, prefix %q: %v, want %v", tt.noDots, tt.prefix, got, tt.want)
		}
		if tt.prefix == "" && (len(w.warned) != 4 || w.warned["dangling"] == "" || w.warned["fifo"] == "" || w.warned["linked"] == "" || w.warned["x.y.z"] == "") {
			t.Errorf("left out: %v", w.warned)
		}
	}

	w := &fileWatch{o: FileOptions{}.withDefaults(), dir: filepath.Join(dir, "b")}
	if _, _, err := w.read(); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file for a directory: %v", err)
	}
	if err := os.Truncate(filepath.Join(dir, "b"), maxBytes+1); err != nil {
		t.Fatal(err)
	}
	w.dir = dir
	if _, _, err := w.read(); err == nil || !strings.Contains(err.Error(), "rules are larger than") {
		t.Errorf("too many bytes: %v", err)
	}
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "b"), "B")
	put(t, filepath.Join(dir, "a.yaml"), "A")
	put(t, filepath.Join(dir, "sub", "c"), "C")
	files, err := ReadDir(dir)
	if err != nil || len(files) != 2 || files[0].Name != filepath.Join(dir, "a.yaml") || string(files[1].Content) != "B" {
		t.Errorf("%v %v", files, err)
	}
	if _, err := ReadDir(filepath.Join(dir, "no")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}
