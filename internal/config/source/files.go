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

// FileOptions say where rules lie. All files of Root/Subdirectory/AppDirectory are read, whatever their suffix; those
// of its subdirectories too, with dots for slashes in their names.
type FileOptions struct {
	Root         string // RUNTIME_ROOT
	Subdirectory string // RUNTIME_SUBDIRECTORY; may be empty
	AppDirectory string // RUNTIME_APPDIRECTORY; default config

	// WatchRoot (RUNTIME_WATCH_ROOT): files are read again when Root, a symlink, is swapped, not when they change in
	// place. Files of Root/Subdirectory count whose dotted name begins with AppDirectory and a dot, and go by that
	// name. Without it files are read again when anything in the directory changes.
	WatchRoot bool

	IgnoreDotFiles bool // RUNTIME_IGNOREDOTFILES: skip names that begin with a dot

	Config   func() config.Options // asked at each load; default: the zero options
	Debounce time.Duration         // quiet time before a load, so that a burst of writes is one; default 100 ms
	Poll     time.Duration         // time between two looks that need no notification; default 5 s
	Logger   *slog.Logger          // default: nowhere
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

// tree is where to look for files, and the prefix of the names that count.
func (o FileOptions) tree() (dir, prefix string) {
	if o.WatchRoot {
		return filepath.Join(o.Root, o.Subdirectory), dotted(o.AppDirectory) + "."
	}
	return filepath.Join(o.Root, o.Subdirectory, o.AppDirectory), ""
}

// WatchFiles loads the rules and loads them again whenever they change, until ctx ends. The first Event comes at once,
// later ones only for contents that differ from the last attempt's, so a fault is said once. Nothing that is wrong with
// the files ends it.
func WatchFiles(ctx context.Context, o FileOptions, sink func(LoadResult)) {
	w := &fileWatch{o: o.withDefaults(), sink: sink}
	w.dir, w.prefix = w.o.tree()
	var events <-chan fsnotify.Event
	var faults <-chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.o.Logger.Warn("no file notifications, changes are found by polling", "every", w.o.Poll, "error", err)
	} else {
		defer notify.Close()
		w.notify, events, faults = notify, notify.Events, notify.Errors
	}
	w.load()
	poll := time.NewTicker(w.o.Poll)
	defer poll.Stop()
	var quiet <-chan time.Time // set while a load is due
	var latest time.Time       // when it is due although it is not quiet
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
			w.o.Logger.Warn("file notifications were lost, polling goes on", "error", err)
		case <-quiet:
			quiet = nil
			w.load()
		case <-poll.C:
			w.poll()
		}
	}
}

// fileWatch is the state of one WatchFiles; only its goroutine touches it.
type fileWatch struct {
	o       FileOptions
	dir     string
	prefix  string
	sink    func(LoadResult)
	notify  *fsnotify.Watcher // nil without notifications
	root    place             // what Root was when it was last read
	content [sha256.Size]byte // of the last attempt; zero when files could not be read
	fault   string            // why files could not be read, if so
	warned  map[string]string // files that were left out: why
}

// concerns says whether a notification is a reason to load.
func (w *fileWatch) concerns(e fsnotify.Event) bool {
	if w.o.WatchRoot {
		return filepath.Clean(e.Name) == w.o.Root && (e.Has(fsnotify.Create) || e.Has(fsnotify.Write))
	}
	return true
}

// poll finds what no notification told of: a directory that appeared later, a network file system, a full queue.
func (w *fileWatch) poll() {
	if w.o.WatchRoot && w.fault == "" {
		if placeOf(w.o.Root).same(w.root) {
			return
		}
	}
	w.load()
}

func (w *fileWatch) load() {
	w.root = placeOf(w.o.Root)
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

// watched are the directories whose notifications are wanted before anything is read.
func (w *fileWatch) watched() []string {
	if w.o.WatchRoot {
		return []string{filepath.Dir(w.o.Root)}
	}
	return []string{w.dir}
}

// watch asks for notifications of directories. A watch ends with its directory, so it is asked for at each load; for
// one that is watched already that does nothing.
func (w *fileWatch) watch(dirs ...string) {
	if w.notify == nil {
		return
	}
	for _, dir := range dirs {
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			w.o.Logger.Debug("no notifications for a directory, it is polled", "dir", dir, "error", err)
		}
	}
}

func (w *fileWatch) read() ([]config.File, []string, error) {
	s := scan{dir: w.dir, prefix: w.prefix, noDots: w.o.IgnoreDotFiles, left: map[string]string{}}
	err := s.run()
	for name, why := range s.left {
		if w.warned[name] != why {
			w.o.Logger.Warn("file left out", "file", name, "reason", why)
		}
	}
	w.warned = s.left
	if err != nil {
		return nil, nil, fmt.Errorf("read rules from %s: %w", w.dir, err)
	}
	slices.SortFunc(s.files, func(a, b config.File) int { return strings.Compare(a.Name, b.Name) })
	return s.files, s.dirs, nil
}

// contentOf is a digest of the files and of the options that decide what becomes of them.
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

// place is where a path leads: the text of the symlink, if it is one, and the directory behind it.
type place struct {
	link string
	info os.FileInfo
}

func placeOf(path string) (p place) {
	p.link, _ = os.Readlink(path) // no symlink: no text
	p.info, _ = os.Stat(path)     // nowhere: nil
	return p
}

func (p place) same(q place) bool {
	return p.link == q.link && p.info != nil && q.info != nil && os.SameFile(p.info, q.info)
}

func dotted(path string) string { return strings.ReplaceAll(filepath.ToSlash(path), "/", ".") }
