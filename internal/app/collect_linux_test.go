package app

import (
	"os"
	"strings"
	"testing"
)

// resident returns how many KiB of the program file are in memory.
func resident(t *testing.T) (kib int) {
	t.Helper()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	ours := false
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if !strings.HasSuffix(f[0], ":") {
			ours = f[len(f)-1] == program && !strings.Contains(f[1], "w")
		} else if ours && f[0] == "Rss:" {
			n := 0
			for _, d := range f[1] {
				n = 10*n + int(d-'0')
			}
			kib += n
		}
	}
	return kib
}

// The process runs on after its program's pages were released.
func TestProgramIsGivenBack(t *testing.T) {
	before := resident(t)
	releaseProgram()
	if after := resident(t); after > before/2 {
		t.Errorf("%d KiB of the program are in memory, of %d", after, before)
	}
}
