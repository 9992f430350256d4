package journal_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/keyward/keyward/journal"
)

// seal makes the checksum of the block at the start of b right.
func seal(b []byte) {
	n := 32 + binary.LittleEndian.Uint32(b[8:])
	binary.LittleEndian.PutUint32(b[12:], journal.Checksum(b[:n]))
}

// TestDamage requires that damage costs exactly the blocks that it hits, and is counted.
func TestDamage(t *testing.T) {
	const one, two = "00000001-00000000", "00000001-00000001" // blocks 1, 2 and 3; 4 and 5
	all := []string{"1", "2", "3", "4", "5"}
	tests := map[string]struct {
		harm            func(r *rig)
		lost            []string
		bad, unreadable int
		missing         uint64
	}{
		"nothing":        {harm: func(*rig) {}},
		"payload":        {harm: func(r *rig) { r.damage(one, 2*4096+32) }, lost: []string{"2"}, bad: 1, missing: 1},
		"padding":        {harm: func(r *rig) { r.damage(one, 2*4096+100) }},
		"length":         {harm: func(r *rig) { r.damage(one, 2*4096+11) }, lost: []string{"2"}, bad: 1, missing: 1},
		"kind":           {harm: func(r *rig) { r.damage(one, 2*4096+4) }, lost: []string{"2"}, bad: 1, missing: 1},
		"magic":          {harm: func(r *rig) { r.damage(one, 2*4096) }, lost: []string{"2"}, bad: 1, missing: 1},
		"salt":           {harm: func(r *rig) { r.damage(one, 2*4096+24) }, lost: []string{"2"}, bad: 1, missing: 1},
		"last":           {harm: func(r *rig) { r.damage(two, 2*4096+32) }, lost: []string{"5"}, bad: 1},
		"end of segment": {harm: func(r *rig) { r.damage(one, 3*4096+32) }, lost: []string{"3"}, bad: 1, missing: 1},
		"two in a row": {
			harm: func(r *rig) { r.damage(one, 2*4096+32); r.damage(one, 3*4096+32) },
			lost: []string{"2", "3"}, bad: 2, missing: 2,
		},
		"two without magic": {
			harm: func(r *rig) { r.damage(one, 2*4096); r.damage(one, 3*4096) }, lost: []string{"2", "3"}, bad: 1, missing: 2,
		},
		"unwritten space": {harm: func(r *rig) { r.damage(two, 3*4096+32) }, bad: 1},
		"header":          {harm: func(r *rig) { r.damage(two, 40) }, bad: 1},
		"first header":    {harm: func(r *rig) { r.damage(one, 40) }, bad: 1},
		"all headers":     {harm: func(r *rig) { r.damage(one, 40); r.damage(two, 40) }, bad: 2},
		"header of a foreign file": {
			harm: func(r *rig) { r.disk.SetBytes(r.file(two), []byte("hello")) }, lost: []string{"4", "5"}, unreadable: 1,
		},
		"empty file":      {harm: func(r *rig) { r.disk.SetBytes(r.file(two), nil) }, lost: []string{"4", "5"}},
		"cut in a header": {harm: func(r *rig) { r.cut(two, 2) }, lost: []string{"4", "5"}, bad: 1},
		"cut in a block":  {harm: func(r *rig) { r.cut(two, 2*4096+10) }, lost: []string{"5"}, bad: 1},
		"cut in padding":  {harm: func(r *rig) { r.cut(two, 2*4096+33) }},
		"missing segment": {harm: func(r *rig) { must(r, r.disk.FS().Remove(r.file(one))) }, lost: all[:3], missing: 3},
		"two salts": {
			harm: func(r *rig) { r.damage(two, 40); r.reseal(two, 2*4096) }, lost: []string{"4", "5"}, unreadable: 1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.o.SegmentBytes = 6 * 4096
			r.j = journal.New(r.o)
			r.begin()
			r.write(all...)
			test.harm(r)
			report, payloads := r.load()
			want := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return slices.Contains(test.lost, p) })
			if !slices.Equal(payloads, want) {
				t.Errorf("read %q, not %q", payloads, want)
			}
			if report.BadBlocks != test.bad || report.UnreadableFiles != test.unreadable ||
				report.MissingBlocks != test.missing || len(report.Errors) != test.bad+test.unreadable {
				t.Errorf("%+v", report)
			}
		})
	}
}

// cut shortens a segment.
func (r *rig) cut(name string, size int) {
	r.disk.SetBytes(r.file(name), r.disk.Bytes(r.file(name))[:size])
}

// reseal gives a block another salt and the right checksum.
func (r *rig) reseal(name string, offset int) {
	b := r.disk.Bytes(r.file(name))
	b[offset+24] ^= 1
	seal(b[offset:])
	r.disk.SetBytes(r.file(name), b)
}

// TestMissingOfOldGenerations requires that gaps before a complete generation do not count, and others do.
func TestMissingOfOldGenerations(t *testing.T) {
	r := newRig(t)
	r.begin()
	r.write("1", "2", "3", "4")
	must(t, r.j.Complete())
	r.begin()
	r.write("5")
	old := r.disk.Bytes(r.file("00000001-00000001"))
	must(t, r.j.Complete())
	must(t, r.j.Stop())
	r.disk.SetBytes(r.file("00000001-00000001"), old) // a loss of power undid its removal
	report, payloads := r.load()
	if !slices.Equal(payloads, []string{"2", "5"}) || report.MissingBlocks != 0 || !report.Clean {
		t.Errorf("%q, %+v", payloads, report)
	}
	r.damage("00000002-00000000", 4096)
	report, _, _ = readAll(t, r.disk.FS(), "shop")
	if report.MissingBlocks != 2 || report.BadBlocks != 1 || report.Clean || report.Complete {
		t.Errorf("%+v", report)
	}
}
