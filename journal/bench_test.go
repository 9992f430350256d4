package journal_test

import (
	"testing"
	"time"

	"github.com/keyward/keyward/journal"
)

// The records of the benchmarks: counters in the peers' encoding.
const (
	recordBytes  = 78
	blockRecords = 200
)

// BenchmarkAppend appends blocks to a file, without Sync. An operation is a record.
func BenchmarkAppend(b *testing.B) {
	benchmarkAppend(b, func(int) bool { return false })
}

// BenchmarkAppendSync appends blocks and makes each durable. An operation is a record.
func BenchmarkAppendSync(b *testing.B) {
	benchmarkAppend(b, func(int) bool { return true })
}

// benchmarkAppend appends blocks, and syncs those for which sync returns true.
func benchmarkAppend(b *testing.B, sync func(block int) bool) {
	o := osOptions(b.TempDir())
	o.SegmentBytes = 0
	j := start(b, o)
	payload := make([]byte, recordBytes*blockRecords)
	b.SetBytes(recordBytes)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%blockRecords > 0 {
			continue
		}
		if j.Status().Bytes > 1<<29 {
			must(b, j.Begin(time.Unix(1, 0), nil))
			must(b, j.Complete())
		}
		must(b, j.Append(payload))
		if sync(i / blockRecords) {
			must(b, j.Sync())
		}
	}
}

// BenchmarkRead reads a million records.
func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	o := osOptions(dir)
	o.SegmentBytes = 0
	j := start(b, o)
	payload := make([]byte, recordBytes*blockRecords)
	for i := range 1_000_000 / blockRecords {
		payload[0] = byte(i)
		must(b, j.Append(payload))
	}
	must(b, j.Sync())
	must(b, j.Close())
	b.SetBytes(1_000_000 * recordBytes)
	b.ReportAllocs()
	for b.Loop() {
		boots, err := journal.Boots(journal.OS(), dir, "shop")
		must(b, err)
		r, err := boots[0].Open()
		must(b, err)
		report, err := r.Read(func(journal.Block) error { return nil })
		must(b, err)
		if report.Bytes != 1_000_000*recordBytes {
			b.Fatalf("%+v", report)
		}
		must(b, r.Close())
	}
}
