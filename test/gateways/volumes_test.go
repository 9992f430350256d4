package gateways

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// updateVolume replaces the files of a volume at once, as a kubelet does: they are links to files in the folder ..data, which is a link to
// a new folder. The names of the files are those of the first call.
func updateVolume(dir string, files map[string][]byte) error {
	old, _ := os.Readlink(filepath.Join(dir, "..data"))
	now := "..version-" + fmt.Sprint(time.Now().UnixNano())
	for name, text := range files {
		if err := writeFile(filepath.Join(dir, now, name), text); err != nil {
			return err
		}
	}
	link := filepath.Join(dir, "..data_tmp")
	if err := errors.Join(os.Symlink(now, link), os.Rename(link, filepath.Join(dir, "..data"))); err != nil {
		return err
	}
	if old != "" {
		return os.RemoveAll(filepath.Join(dir, old))
	}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// updateSecret replaces the files of a Secret's volume.
func (k *kubernetes) updateSecret(ctx context.Context, ns, name, dir string) error {
	var o struct{ Data map[string]string }
	if err := k.get(ctx, "/api/v1/namespaces/"+ns+"/secrets/"+name, &o); err != nil {
		return err
	}
	files := map[string][]byte{}
	for file, text := range o.Data {
		content, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return err
		}
		files[file] = content
	}
	return updateVolume(dir, files)
}
