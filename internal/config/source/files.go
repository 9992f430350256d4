package source

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/keyward/keyward/internal/config"
)

// FileOptions configure where rules are read. All files in Root/Subdirectory/AppDirectory and below are read, with any
// suffix. Dots replace the slashes in their names.
type FileOptions struct {
	Root         string // RUNTIME_ROOT
	Subdirectory string // RUNTIME_SUBDIRECTORY; may be empty
	AppDirectory string // RUNTIME_APPDIRECTORY; default config

	// WatchRoot (RUNTIME_WATCH_ROOT) reloads the files when Root, a symlink, is replaced, and not when they change in
	// place. It reads the files in Root/Subdirectory whose dotted name begins with AppDirectory and a dot. Without
	// WatchRoot, any change in the directory reloads the files.
	WatchRoot bool

	IgnoreDotFiles bool // RUNTIME_IGNOREDOTFILES: skip names that begin with a dot

	Config   func() config.Options // called for each load; nil: the zero options
	Debounce time.Duration         // quiet time before a load, so that several writes cause one load; default 100 ms
	Poll     time.Duration         // interval of checks without a notification; default 5 s
	Logger   *slog.Logger          // nil: no logs
}

func (o FileOptions) withDefaults() FileOptions {
	if o.AppDirectory == "" {
		o.AppDirectory = "config"
	}
	if o.Config == nil {
		o.Config = func() config.Options { return config.Options{} }
	}
	if o.Debounce <= 0 {
		o.Debounce = 100 * time.Millisecond
	}
	if o.Poll <= 0 {
		o.Poll = 5 * time.Second
	}
	o.Root = filepath.Clean(o.Root)
	o.Logger = loggerOr(o.Logger)
	return o
}

// tree returns the directory to read, and the prefix of the names to include.
func (o FileOptions) tree() (dir, prefix string) {
	if o.WatchRoot {
		return filepath.Join(o.Root, o.Subdirectory), dotted(o.AppDirectory) + "."
	}
	return filepath.Join(o.Root, o.Subdirectory, o.AppDirectory), ""
}

// WatchFiles loads the rules, and reloads them whenever they change, until ctx is done. It calls sink immediately with
// the first result, and later only if the content differs from that of the last attempt, so that each fault is reported
// once. No error in the files stops it.
func WatchFiles(ctx context.Context, o FileOptions, sink func(LoadResult)) {
	w := &fileWatch{o: o.withDefaults(), sink: sink}
	w.dir, w.prefix = w.o.tree()
	var events <-chan fsnotify.Event
	var faults <-chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.o.Logger.Warn("file notifications not available; polling for changes", "retry_in", w.o.Poll, "error", err)
	} else {
		defer notify.Close()
		w.notify, events, faults = notify, notify.Events, notify.Errors
	}
	w.load()
	poll := time.NewTicker(w.o.Poll)
	defer poll.Stop()
	var quiet <-chan time.Time // set while a load is pending
	var latest time.Time       // when the load happens at the latest
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if !w.concerns(e) {
				continue
			}
			now := time.Now()
			if quiet == nil {
				latest = now.Add(10 * w.o.Debounce)
			}
			quiet = time.After(min(w.o.Debounce, latest.Sub(now)))
		case err := <-faults:
			w.o.Logger.Warn("file notifications lost; polling continues", "error", err)
		case <-quiet:
			quiet = nil
			w.load()
		case <-poll.C:
			w.poll()
		}
	}
}

// fileWatch is the state of one WatchFiles. Only its goroutine uses it.
type fileWatch struct {
	o       FileOptions
	dir     string
	prefix  string
	sink    func(LoadResult)
	notify  *fsnotify.Watcher // nil without notifications
	root    pathTarget        // target of Root when it was last read
	content [sha256.Size]byte // of the last attempt; zero if the files could not be read
	fault   string            // why the files could not be read; empty if they could
	warned  map[string]string // skipped files with the cause
}

// concerns reports whether a notification is a reason to load.
func (w *fileWatch) concerns(e fsnotify.Event) bool {
	if w.o.WatchRoot {
		return filepath.Clean(e.Name) == w.o.Root && (e.Has(fsnotify.Create) || e.Has(fsnotify.Write))
	}
	return true
}

// poll finds changes without a notification: a directory created later, a network file system, a full queue.
func (w *fileWatch) poll() {
	if w.o.WatchRoot && w.fault == "" {
		if targetOf(w.o.Root).same(w.root) {
			return
		}
	}
	w.load()
}

func (w *fileWatch) load() {
	w.root = targetOf(w.o.Root)
	w.watch(w.watched()...)
	files, dirs, err := w.read()
	e := LoadResult{Source: FromFiles, Detail: w.dir}
	if err != nil {
		w.content = [sha256.Size]byte{}
		if w.fault != err.Error() {
			w.fault = err.Error()
			e.Err = err
			w.sink(e)
		}
		return
	}
	w.fault = ""
	if !w.o.WatchRoot {
		w.watch(dirs...)
	}
	o := w.o.Config()
	content := contentOf(files, o)
	if content == w.content {
		return
	}
	w.content = content
	e.Rules, e.Err = config.Load(files, o)
	w.sink(e)
}

// watched returns the directories to watch before the first read.
func (w *fileWatch) watched() []string {
	if w.o.WatchRoot {
		return []string{filepath.Dir(w.o.Root)}
	}
	return []string{w.dir}
}

// watch subscribes to notifications of directories. A subscription ends when its directory is removed, so watch is
// called for each load. It does nothing for a directory that is already watched.
func (w *fileWatch) watch(dirs ...string) {
	if w.notify == nil {
		return
	}
	for _, dir := range dirs {
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			w.o.Logger.Debug("file notifications not available for a directory; polling it", "file", dir, "error", err)
		}
	}
}

func (w *fileWatch) read() ([]config.File, []string, error) {
	s := scan{dir: w.dir, prefix: w.prefix, noDots: w.o.IgnoreDotFiles, skipped: map[string]string{}}
	err := s.run()
	for name, why := range s.skipped {
		if w.warned[name] != why {
			w.o.Logger.Warn("file skipped", "file", name, "cause", why)
		}
	}
	w.warned = s.skipped
	if err != nil {
		return nil, nil, fmt.Errorf("read rules from %s: %w", w.dir, err)
	}
	slices.SortFunc(s.files, func(a, b config.File) int { return strings.Compare(a.Name, b.Name) })
	return s.files, s.dirs, nil
}

// contentOf returns a digest of the files and of the options that affect how they load.
func contentOf(files []config.File, o config.Options) (sum [sha256.Size]byte) {
	h := sha256.New()
	part := func(b []byte) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	part(fmt.Appendf(nil, "%v %q %q", o.MergeDomains, o.KeyPrefix, o.Cluster))
	for _, f := range files {
		part([]byte(f.Name))
		part(f.Content)
	}
	h.Sum(sum[:0])
	return sum
}

// pathTarget identifies what a path refers to: the text of the symlink, if it is one, and the directory behind it.
type pathTarget struct {
	link string
	info os.FileInfo
}

func targetOf(path string) (t pathTarget) {
	t.link, _ = os.Readlink(path) // empty if it is not a symlink
	t.info, _ = os.Stat(path)     // nil if it does not exist
	return t
}

func (t pathTarget) same(u pathTarget) bool {
	return t.link == u.link && t.info != nil && u.info != nil && os.SameFile(t.info, u.info)
}

func dotted(path string) string { return strings.ReplaceAll(filepath.ToSlash(path), "/", ".") }
