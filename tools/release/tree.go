package main

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// entry is a file, a folder or a link of a tree.
type entry struct {
	kind  byte // tar.TypeReg, tar.TypeDir or tar.TypeSymlink
	mode  int64
	owner int // user and group
	link  string
	body  []byte
}

// tree is the content of an archive, a package or a layer, by path without a leading slash. Folders that hold something
// need no entry.
type tree map[string]entry

func (t tree) file(name string, mode int64, body []byte) {
	t[name] = entry{kind: tar.TypeReg, mode: mode, body: body}
}

func (t tree) dir(name string, mode int64, owner int) {
	t[name] = entry{kind: tar.TypeDir, mode: mode, owner: owner}
}

func (t tree) link(name, to string) { t[name] = entry{kind: tar.TypeSymlink, mode: 0o777, link: to} }

// copyDir adds the regular files below a folder of this machine. Executable ones stay executable.
func (t tree) copyDir(name, from string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		return t.copyFile(path.Join(name, filepath.ToSlash(rel)), file)
	})
}

func (t tree) copyFile(name, from string) error {
	body, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	t.file(name, mode, body)
	return nil
}

// names returns the paths in the order of archives, with all folders before what they hold.
func (t tree) names() []string {
	all := map[string]bool{}
	for name := range t {
		for ; name != "."; name = path.Dir(name) {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// at returns an entry, or that of a folder which another entry implies.
func (t tree) at(name string) entry {
	if e, ok := t[name]; ok {
		return e
	}
	return entry{kind: tar.TypeDir, mode: 0o755}
}

// tar returns an uncompressed archive. Its bytes depend on the tree, the prefix of all paths and the time alone.
func (t tree) tar(prefix string, modified time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range t.names() {
		e := t.at(name)
		h := &tar.Header{
			Typeflag: e.kind, Name: prefix + name, Linkname: e.link, Size: int64(len(e.body)), Mode: e.mode,
			Uid: e.owner, Gid: e.owner, ModTime: modified, Format: tar.FormatPAX,
		}
		if e.kind == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.body); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// tarGz returns a compressed archive, without a time and a name in the header of gzip.
func (t tree) tarGz(prefix string, modified time.Time) ([]byte, error) {
	plain, err := t.tar(prefix, modified)
	if err != nil {
		return nil, err
	}
	return compress(plain)
}

func compress(plain []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// files returns the paths of the regular files.
func (t tree) files() []string {
	return slices.DeleteFunc(t.names(), func(name string) bool { return t.at(name).kind != tar.TypeReg })
}

// with returns both trees as one. What is in the other replaces what is in t.
func (t tree) with(others ...tree) tree {
	all := maps.Clone(t)
	for _, o := range others {
		maps.Copy(all, o)
	}
	return all
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }
