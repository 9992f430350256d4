package journal

import "path/filepath"

// Label is the directory of the journals of one cluster.
type Label struct {
	Name string // of the directory: the digest of the cluster's label

	fs     FS
	dir    string
	digest uint64
}

// Labels returns the labels with a directory in dir, sorted by name, and the other names in dir. It is for tools,
// which do not know the label; a member calls Boots.
func Labels(files FS, dir string) (labels []Label, others []string, err error) {
	entries, err := files.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if digest, ok := parseID(e.Name); ok && e.Type.IsDir() {
			labels = append(labels, Label{Name: e.Name, fs: files, dir: dir, digest: digest})
		} else {
			others = append(others, e.Name)
		}
	}
	return labels, others, nil
}

// Dir returns the path of the label's directory.
func (l Label) Dir() string { return filepath.Join(l.dir, l.Name) }

// Boots returns the boots with a directory, as the function Boots does.
func (l Label) Boots() ([]Boot, error) { return bootsOf(l.fs, l.dir, l.digest) }
