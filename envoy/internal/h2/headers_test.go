package h2

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// Cached blocks decode like those of a decoder without a cache, whatever came between. The fields are chosen at
// random from a few, so that equal blocks are likely.
func TestKnownBlocksSayWhatTheyDo(t *testing.T) {
	parts := []string{
		"\x83\x87", "\xbe", "\xbf", "\xc0", "\x40\x03x-a\x011", "\x40\x03x-a\x012", "\x40\x03x-b\x013", "\x7e\x014", // put into the table
		"\x00\x03x-a\x015", "\x10\x03x-b\x016", "\x0f\x2f\x017", "\x1f\x30\x018", // and not
	}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		o := &Options{Headers: []KeptHeader{{Name: "x-a"}, {Name: "x-b"}}, Limits: Limits{}.withDefaults()}
		var h headers
		h.init(o)
		plain := hpack.NewDecoder(headerTableSize, nil)
		for range 100 {
			var b []byte
			if rnd.IntN(20) == 0 {
				b = []byte{0x20, 0x3f, 0xe1, 0x1f} // the table is emptied
			}
			for range 1 + rnd.IntN(2) {
				b = append(b, parts[rnd.IntN(len(parts))]...)
			}
			list, err := plain.DecodeFull(b)
			r, err2 := h.unpack(bytes.Clone(b))
			if (err == nil) != (err2 == nil) {
				t.Fatalf("seed %d: %x: %v, not %v", seed, b, err2, err)
			}
			if err != nil {
				break
			}
			want := make([]string, 2)
			for _, f := range list {
				if i := slices.Index(o.Headers, KeptHeader{Name: f.Name}); i >= 0 && want[i] == "" {
					want[i] = f.Value
				}
			}
			if !slices.Equal(r.values, want) {
				t.Fatalf("seed %d: %x says %q, not %q", seed, b, r.values, want)
			}
		}
	}
}

// BenchmarkUnpack decodes the header block of an Envoy call: identical each time, and with a different key each time,
// which Envoy adds to the table.
func BenchmarkUnpack(b *testing.B) {
	o := &Options{Headers: []KeptHeader{{Name: "x-keyward-key"}}, Limits: Limits{}.withDefaults(), Methods: map[string]Handler{echo: constant{}}}
	for _, way := range []string{"same", "another key"} {
		b.Run(way, func(b *testing.B) {
			var h headers
			h.init(o)
			var out bytes.Buffer
			enc := hpack.NewEncoder(&out)
			pack := func(key string) []byte {
				out.Reset()
				for _, f := range envoyHeaders {
					_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: f[0] == ":path"})
				}
				_ = enc.WriteField(hpack.HeaderField{Name: "x-keyward-key", Value: key})
				return bytes.Clone(out.Bytes())
			}
			blocks := [][]byte{pack("key-0000")}
			for i := range 1000 {
				if way == "same" {
					i = 0
				}
				blocks = append(blocks, pack(fmt.Sprintf("key-%04d", i)))
			}
			if _, err := h.unpack(blocks[0]); err != nil {
				b.Fatal(err)
			}
			// The table's indexes differ between rounds, but their number does not, and no needed entry is gone.
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := h.unpack(blocks[1+i%1000]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
