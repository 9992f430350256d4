package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/keyward/keyward/internal/config"
)

// maxBytes is the maximum size of all rules files together.
const maxBytes = 64 << 20

// scan reads a directory and everything below it.
type scan struct {
	dir     string
	prefix  string // of the dotted names to include
	noDots  bool
	files   []config.File
	dirs    []string          // all directories that were read
	skipped map[string]string // skipped files with the cause
	size    int64
}

func (s *scan) run() error {
	root, err := filepath.EvalSymlinks(s.dir) // WalkDir does not follow a symlink as its root
	if err != nil {
		return err
	}
	info, err := os.Stat(root)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("not a directory")
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed since it was listed
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return s.visit(path, rel, d)
	})
}

func (s *scan) visit(path, rel string, d fs.DirEntry) error {
	if rel != "." && s.hidden(d.Name()) {
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	if d.IsDir() {
		s.dirs = append(s.dirs, path)
		return nil
	}
	name := dotted(rel)
	if !strings.HasPrefix(name, s.prefix) {
		return nil
	}
	content, why, err := readRegular(path, maxBytes-s.size)
	switch {
	case err != nil:
		return err
	case why != "":
		s.skipped[name] = why
		return nil
	}
	s.size += int64(len(content))
	s.add(config.File{Name: name, Content: content})
	return nil
}

// hidden reports whether a name is ignored. Names with two dots are Kubernetes' own in a volume, and contain the files
// a second time.
func (s *scan) hidden(name string) bool {
	return strings.HasPrefix(name, "..") || s.noDots && strings.HasPrefix(name, ".")
}

// add adds a file. Of two files with the same dotted name, such as a/b and a.b, it keeps the later one.
func (s *scan) add(f config.File) {
	for i := range s.files {
		if s.files[i].Name == f.Name {
			s.skipped[f.Name] = "another file has the same name after replacing slashes with dots"
			s.files[i] = f
			return
		}
	}
	s.files = append(s.files, f)
}

// readRegular reads a file, or returns the cause for skipping it. A file that exists and cannot be read is an error,
// since skipping it would remove limits.
func readRegular(path string, most int64) (content []byte, cause string, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "does not exist: a dangling symlink, or just removed", nil
	case err != nil:
		return nil, "", err
	case info.IsDir():
		return nil, "a symlink to a directory", nil
	case !info.Mode().IsRegular():
		return nil, "not a regular file", nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "just removed", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	content, err = io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%s: the rules are larger than %d bytes", path, int64(maxBytes))
	}
	return content, "", err
}

// ReadDir reads the files in one directory, with any suffix, but not those in its subdirectories. Their names are
// paths, as they appear in diagnostics.
func ReadDir(dir string) ([]config.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	var files []config.File
	var faults []error
	room := int64(maxBytes)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		content, why, err := readRegular(path, room)
		if err != nil {
			faults = append(faults, err)
		}
		if err != nil || why != "" {
			continue
		}
		room -= int64(len(content))
		files = append(files, config.File{Name: path, Content: content})
	}
	return files, errors.Join(faults...)
}
