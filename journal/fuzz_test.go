package journal_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

// FuzzLoad reads arbitrary bytes as segments. Only payloads with a valid checksum may be delivered, and memory is
// bounded.
func FuzzLoad(f *testing.F) {
	golden, err := os.ReadFile(goldenFile)
	if err != nil {
		f.Fatal(err)
	}
	cut := append([]byte{}, golden[:0x2010]...)
	torn := append([]byte{}, golden...)
	torn[0x20] ^= 1
	long := append([]byte{}, golden...)
	binary.LittleEndian.PutUint32(long[0x1008:], 1<<20)
	f.Add(golden, []byte{})
	f.Add(golden, torn)
	f.Add(golden, cut)
	f.Add(cut, golden)
	f.Add(torn, long)
	f.Add([]byte("KWJB"), make([]byte, 9000))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		path, _ := goldenSegment(t)
		disk := modeldisk.New(rand.New(rand.NewPCG(1, 1)))
		disk.SetBytes(path, first)
		disk.SetBytes(path[:len(path)-5]+"1.seg", second)
		loadFuzzed(t, disk)
	})
}

// loadFuzzed reads the only boot of a disk.
func loadFuzzed(t *testing.T, disk *modeldisk.Disk) {
	t.Helper()
	boots, err := journal.Boots(disk.FS(), "/data", "shop")
	if err != nil || len(boots) != 1 {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := boots[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	blocks, held := 0, 0
	report, err := r.Read(func(b journal.Block) error {
		blocks++
		held += len(b.Payload)
		return nil
	})
	runtime.ReadMemStats(&after)
	if err != nil || report.Blocks != blocks || report.Bytes != int64(held) || len(report.Errors) > 64 {
		t.Fatalf("%v, %+v", err, report)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Fatalf("%d bytes were allocated", used)
	}
	again, err := r.Read(func(b journal.Block) error {
		file := disk.Bytes(b.File)[b.Offset:]
		n := 32 + len(b.Payload)
		if string(file[32:n]) != string(b.Payload) || journal.Checksum(file[:n]) != binary.LittleEndian.Uint32(file[12:]) {
			t.Fatalf("%s: offset %d: a payload without a valid checksum", b.File, b.Offset)
		}
		return nil
	})
	if err != nil || again.Blocks != report.Blocks || again.BadBlocks != report.BadBlocks ||
		again.MissingBlocks != report.MissingBlocks || again.UnreadableFiles != report.UnreadableFiles {
		t.Fatalf("a second Read finds %+v, not %+v", again, report)
	}
	if err := r.Remove(); (err != nil) != (report.UnreadableFiles > 0) {
		t.Fatalf("%v, %+v", err, report)
	}
}
