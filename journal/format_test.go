package journal_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing them")

// goldenFile is a segment of which FORMAT.md shows the bytes.
const goldenFile = "testdata/v1.seg"

// goldenSegment writes the segment that FORMAT.md shows, and returns its path and content.
func goldenSegment(t *testing.T) (path string, content []byte) {
	t.Helper()
	disk := modeldisk.New(rand.New(rand.NewPCG(1, 1)))
	j := journal.New(journal.Options{
		FS: disk.FS(), Dir: "/data", Label: "shop", Scheme: 7, Member: "pod-0", Boot: 0x1122334455667788,
		Salt: func() uint64 { return 0xa1a2a3a4a5a6a7a8 }, SegmentBytes: 4 * 4096,
	})
	defer j.Close()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	ring := []journal.RingMember{{Name: "pod-0", Boot: 0x1122334455667788}, {Name: "pod-1", Boot: 9}}
	for _, err := range []error{j.Begin(now, ring), j.Append([]byte("three hits")), j.Complete(), j.Stop()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	files := disk.Files(j.Dir())
	return files[0], disk.Bytes(files[0])
}

// TestGolden requires that the format does not change, and that FORMAT.md shows it.
func TestGolden(t *testing.T) {
	path, content := goldenSegment(t)
	if *update {
		if err := os.WriteFile(goldenFile, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content, want) {
		t.Errorf("%s is not what is written now:\n%s", goldenFile, dump(content))
	}
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "```\n"+dump(content)+"```\n") || !strings.Contains(string(text), path) {
		t.Errorf("FORMAT.md does not show %s:\n%s", path, dump(content))
	}
}

// TestGoldenRead requires that the golden file can be read.
func TestGoldenRead(t *testing.T) {
	path, _ := goldenSegment(t)
	content, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	disk := modeldisk.New(rand.New(rand.NewPCG(1, 1)))
	disk.SetBytes(path, content)
	report, payloads, header := readAll(t, disk.FS(), "shop")
	if len(payloads) != 1 || payloads[0] != "three hits" || !report.Clean || !report.Complete || report.Files != 1 {
		t.Errorf("%q, %+v", payloads, report)
	}
	if header.Scheme != 7 || header.Member != "pod-0" || header.Boot != 0x1122334455667788 || header.Generation != 1 ||
		header.Segment != 0 || header.First != 1 || header.GenerationFirst != 1 || len(header.Ring) != 2 ||
		header.Ring[1] != (journal.RingMember{Name: "pod-1", Boot: 9}) ||
		!header.Created.Equal(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", header)
	}
}

// dump returns the lines of a hex dump that have bytes other than zero.
func dump(b []byte) string {
	var lines strings.Builder
	for line := range strings.Lines(hex.Dump(b)) {
		if !strings.Contains(line, strings.Repeat("00 ", 8)+" "+strings.Repeat("00 ", 8)) {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// readAll reads the only boot with a label.
func readAll(t testing.TB, files journal.FS, label string) (journal.LoadReport, []string, journal.Header) {
	t.Helper()
	return readDir(t, files, "/data", label)
}

// readDir is readAll of a directory.
func readDir(t testing.TB, files journal.FS, dir, label string) (journal.LoadReport, []string, journal.Header) {
	t.Helper()
	boots, err := journal.Boots(files, dir, label)
	if err != nil || len(boots) != 1 {
		t.Fatalf("%d boots, %v", len(boots), err)
	}
	r, err := boots[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var payloads []string
	report, err := r.Read(func(b journal.Block) error {
		payloads = append(payloads, string(b.Payload))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return report, payloads, r.Header()
}
