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

// maxBytes is the most that all files of rules together may hold.
const maxBytes = 64 << 20

// scan reads a directory and all below it.
type scan struct {
	dir    string
	prefix string // of the dotted names that count
	noDots bool
	files  []config.File
	dirs   []string          // every directory that was read
	left   map[string]string // files that were left out, and why
	size   int64
}

func (s *scan) run() error {
	root, err := filepath.EvalSymlinks(s.dir) // a walk does not follow its own root
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
			return nil // gone since it was listed
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
		s.left[name] = why
		return nil
	}
	s.size += int64(len(content))
	s.add(config.File{Name: name, Content: content})
	return nil
}

// hidden says whether a name does not count. Two dots begin what Kubernetes keeps for itself in a volume: the files
// are there a second time.
func (s *scan) hidden(name string) bool {
	return strings.HasPrefix(name, "..") || s.noDots && strings.HasPrefix(name, ".")
}

// add keeps one file a name: a/b and a.b have the same, and the one that is read later stands.
func (s *scan) add(f config.File) {
	for i := range s.files {
		if s.files[i].Name == f.Name {
			s.left[f.Name] = "another file has the same name once slashes are dots"
			s.files[i] = f
			return
		}
	}
	s.files = append(s.files, f)
}

// readRegular reads a file or says why it is left out. One that cannot be read although it is there is an error: to
// leave it out would take limits away.
func readRegular(path string, most int64) (content []byte, why string, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "not there: a symlink that leads nowhere, or just removed", nil
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
		err = fmt.Errorf("%s: rules of more than %d bytes", path, int64(maxBytes))
	}
	return content, "", err
}

// ReadDir reads the files of one directory, whatever their suffix, not those of its subdirectories. Their names are
// paths, as they stand in faults.
func ReadDir(dir string) ([]config.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	var files []config.File
	var faults []error
	left := int64(maxBytes)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		content, why, err := readRegular(path, left)
		if err != nil {
			faults = append(faults, err)
		}
		if err != nil || why != "" {
			continue
		}
		left -= int64(len(content))
		files = append(files, config.File{Name: path, Content: content})
	}
	return files, errors.Join(faults...)
}
