package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/journal"
)

// noon is the time of the journals of this test.
var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// monthQuota and others are the rules of the journals of this test.
var (
	monthQuota = limit.Rule{Window: 720 * time.Hour, Limit: 1000}
	hourly     = limit.Rule{Window: 90 * time.Minute, Limit: 50, Algorithm: limit.SlidingWindow}
	bucket     = limit.Rule{Window: 24 * time.Hour, Limit: 240, Burst: 100, Algorithm: limit.TokenBucket}
)

// charged returns a counter that each writer has charged with hits at noon.
func charged(key uint64, r limit.Rule, hits uint64, writers ...uint64) protocol.CounterRecord {
	c := protocol.CounterRecord{Key: [2]uint64{key, key << 8}, Rule: r}
	for _, w := range writers {
		r.Take(&c.State, noon.UnixNano(), w, hits)
	}
	c.ExpiresAt = r.Expires(&c.State)
	return c
}

// counterRecord returns the payload of a block with counters, each with ahead hits reserved.
func counterRecord(ahead uint64, cs ...protocol.CounterRecord) []byte {
	writers := counterwire.Writers(nil).Of(cs)
	w := writers.Append(wire.Writer(nil).U8(1)).U16(uint16(len(cs)))
	for i := range cs {
		w = counterwire.Append(w, &cs[i], writers)
	}
	for range cs {
		w = w.Uvarint(ahead)
	}
	return w
}

// ringRecord returns the payload of a block with a complete ring.
func ringRecord(members ...journal.RingMember) []byte {
	w := wire.Writer(nil).U8(2).I64(noon.UnixNano()).U16(uint16(len(members)))
	for _, m := range members {
		w = w.U16(uint16(len(m.Name))).String(m.Name).U64(m.Boot)
	}
	return w
}

// writeJournal writes a complete journal and returns it.
func writeJournal(t *testing.T, label, member string, boot uint64, stop bool, records ...[]byte) *journal.Journal {
	t.Helper()
	j := journal.New(journal.Options{
		Dir: "data", Label: label, Scheme: peer.KeyScheme, Member: member, Boot: boot, SegmentBytes: 64 << 10,
		Salt: func() uint64 { return boot },
	})
	err := j.Begin(noon, nil)
	for _, r := range records {
		err = errors.Join(err, j.Append(r))
	}
	err = errors.Join(err, j.Complete())
	if stop {
		err = errors.Join(err, j.Stop())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// writeJournals writes the journals of three members below data: one has stopped, one has crashed, one is running.
func writeJournals(t *testing.T) (crashed *journal.Journal) {
	t.Helper()
	t.Chdir(t.TempDir())
	ring := ringRecord(
		journal.RingMember{Name: "pod-1", Boot: 0x21}, journal.RingMember{Name: "pod-0", Boot: 0x11},
		journal.RingMember{Name: "pod-2", Boot: 0x31}, journal.RingMember{Name: "pod-3", Boot: 0x41})
	stopped := writeJournal(t, "shop", "pod-0", 0x11, true, ring, counterRecord(5, charged(0xabc, monthQuota, 100, 0x11)))
	crashed = writeJournal(t, "shop", "pod-1", 0x21, false,
		counterRecord(10, charged(0xabc, monthQuota, 200, 0x21, 0x51), charged(0xabd, bucket, 30, 0x21)), ring,
		counterRecord(7, charged(0xabc, monthQuota, 250, 0x21), charged(0xabe, hourly, 20, 1)))
	writeJournal(t, "shop", "pod-2", 0x31, false, ring, counterRecord(0, charged(0xabc, monthQuota, 60, 0x11)))
	if err := errors.Join(stopped.Close(), crashed.Close()); err != nil {
		t.Fatal(err)
	}
	return crashed
}

// runJournal runs a journal command and returns what it prints, on both outputs, and its exit code.
func runJournal(args ...string) (string, int) {
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"journal"}, args...))
	err := root.Execute()
	if err == nil {
		return out.String(), 0
	}
	if !errors.Is(err, errFailed) {
		fmt.Fprintf(&out, "error: %v\n", err)
	}
	return out.String(), exitCode(err)
}

// TestJournalGolden holds what an operator sees of journals that can be read, and of damaged ones.
func TestJournalGolden(t *testing.T) {
	testdata, err := filepath.Abs("testdata/journal")
	if err != nil {
		t.Fatal(err)
	}
	crashed := writeJournals(t)
	at := noon.Add(time.Hour).Format(time.RFC3339)
	check := func(file string, code int, args ...string) {
		t.Helper()
		out, got := runJournal(args...)
		if got != code {
			t.Errorf("%q: exit code %d, want %d", args, got, code)
		}
		golden(t, filepath.Join(testdata, file), out)
	}
	check("verify.txt", 0, "verify", "data")
	check("show.txt", 0, "show", "data", "--at", at)
	check("show.json", 0, "show", "data", "--at", at, "--json", "--key", "0000000000000aBd")
	damage(t, filepath.Join(crashed.Dir(), "00000001-00000000.seg"), 4096+40)
	if err := os.WriteFile(filepath.Join(crashed.Dir(), "notes"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	writeJournal(t, "other", "pod-9", 0x91, true, counterRecord(0, charged(0xabc, monthQuota, 1, 0x91)), []byte("no record"))
	check("damaged.txt", 1, "verify", "data")
	check("damaged.json", 1, "verify", "data", "-o", "json")
	check("damaged.show.txt", 0, "show", "data", "--at", at)
}

// damage changes one byte of a file.
func damage(t *testing.T, file string, offset int) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[offset] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestJournalReadsOnly requires that both commands leave a copy as it is, and need no permission to write.
func TestJournalReadsOnly(t *testing.T) {
	crashed := writeJournals(t)
	if err := errors.Join(os.Remove(filepath.Join(crashed.Dir(), "LOCK")), os.Chmod(crashed.Dir(), 0o500)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(crashed.Dir(), 0o700) })
	for _, command := range []string{"verify", "show"} {
		if out, code := runJournal(command, "data"); code != 0 {
			t.Errorf("%s: exit code %d\n%s", command, code, out)
		}
	}
	if _, err := os.Stat(filepath.Join(crashed.Dir(), "LOCK")); err == nil {
		t.Error("LOCK was created")
	}
}

func TestJournalFaults(t *testing.T) {
	writeJournals(t)
	if err := os.Mkdir("empty", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args string
		code int
		want string
	}{
		{"verify", 2, "want one directory"},
		{"verify data data", 2, "want one directory"},
		{"verify data --bogus", 2, "unknown flag"},
		{"verify data -o xml", 2, "want one of: text, json"},
		{"verify absent", 2, "read journals: "},
		{"verify empty", 2, "empty has no journals"},
		{"show data --key xyz", 2, "want at most 32 hexadecimal digits"},
		{"show data --at noon", 2, "want a time such as"},
		{"show data --key 99", 1, "no journal has a counter with the key 99"},
	} {
		out, code := runJournal(strings.Fields(row.args)...)
		if code != row.code || !strings.Contains(out, row.want) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s", row.args, code, row.code, row.want, out)
		}
	}
}

func TestWindowText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Hour: "1h", 90 * time.Minute: "1h30m", 720 * time.Hour: "720h", time.Minute: "1m", 10 * time.Second: "10s",
		70 * time.Second: "1m10s", 500 * time.Millisecond: "500ms",
	} {
		if got := windowText(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
