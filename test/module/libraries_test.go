package module

import (
	"debug/elf"
	"path/filepath"
	"strings"
	"testing"
)

// TestLibraries requires that the built files need no library but the C library, because Envoy's distroless image has no other.
func TestLibraries(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join(modules(), "*.so"))
	if len(files) == 0 {
		t.Fatalf("no files in %s", modules())
	}
	for _, file := range files {
		f, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		for _, name := range libraries {
			if name != "libc.so.6" && !strings.HasPrefix(name, "ld-linux-") {
				t.Errorf("%s needs %s", file, name)
			}
		}
	}
}
