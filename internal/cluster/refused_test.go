package cluster

import (
	"bytes"
	"compress/lzw"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// reasons counts what members reject.
type reasons struct {
	mu sync.Mutex
	n  map[string]int
}

func (r *reasons) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == nil {
		r.n = map[string]int{}
	}
	r.n[reason]++
}

func (r *reasons) of(reason string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[reason]
}

// bomb returns a compressed message that decompresses to more than memberlist accepts, in less than a datagram.
// Compressing it takes a second.
var bomb = sync.OnceValue(func() []byte {
	var packed bytes.Buffer
	w := lzw.NewWriter(&packed, lzw.LSB, 8)
	zeros := make([]byte, 1<<20)
	for range 60 {
		_, _ = w.Write(zeros) // to memory
	}
	w.Close()
	const compressed = 9
	b := append([]byte{compressed, 0x82, 0xa4}, "Algo\x00\xa3Buf\xdb"...)
	return append(binary.BigEndian.AppendUint32(b, uint32(packed.Len())), packed.Bytes()...)
})

func datagram(t *testing.T, to string, b []byte) {
	t.Helper()
	if len(b) > 60_000 {
		t.Fatalf("%d bytes do not fit a datagram", len(b))
	}
	c, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func stream(t *testing.T, to string, b []byte) {
	t.Helper()
	c, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() { _, _ = c.Write(b) }()
	_, _ = io.Copy(io.Discard, c)
}

// TestRefusedGossipIsCounted depends on memberlist's log lines, which are the only report of rejected messages.
func TestRefusedGossipIsCounted(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	labeled := func(label string, b []byte) []byte {
		return append(append([]byte{244, byte(len(label))}, label...), b...)
	}
	long := append([]byte{10, 1, 0x30, 0, 0}, make([]byte, 16<<20)...) // encrypted, with a header for 19 MiB
	for _, tt := range []struct {
		name, reason, keyFile string
		do                    func(t *testing.T, to string)
	}{
		{"a plaintext datagram", "key", key, func(t *testing.T, to string) { datagram(t, to, labeled("test", []byte("\x06hello"))) }},
		{"a plaintext stream", "key", key, func(t *testing.T, to string) { stream(t, to, labeled("test", []byte("\x06hello"))) }},
		{"a member with another key", "key", key, func(t *testing.T, to string) { stranger(t, to, "test", strings.Repeat("x", 32)) }},
		{"a member with another label", "label", key, func(t *testing.T, to string) { stranger(t, to, "other", strings.Repeat("k", 32)) }},
		{"a datagram of another label", "label", "", func(t *testing.T, to string) { datagram(t, to, labeled("other", []byte("\x06hello"))) }},
		{"a stream that never ends", "too_large", key, func(t *testing.T, to string) { stream(t, to, labeled("test", long)) }},
		{"a compressed bomb as a datagram", "compressed", "", func(t *testing.T, to string) { datagram(t, to, labeled("test", bomb())) }},
		{"a compressed bomb as a stream", "compressed", "", func(t *testing.T, to string) { stream(t, to, labeled("test", bomb())) }},
		{"nonsense", "malformed", "", func(t *testing.T, to string) { datagram(t, to, labeled("test", []byte("\x63nonsense"))) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var refused reasons
			all := three(t, func(o *Options) {
				o.KeyFile, o.OnRefused, o.Timing.Stream = tt.keyFile, refused.add, 20*time.Second
			})
			before := refused.of(tt.reason) // a late message of the previous test may arrive at a port that is used again
			tt.do(t, all[0].Gossip())
			eventually(t, "counted as "+tt.reason, func() bool { return refused.of(tt.reason) > before })
			if !whole(all...) || len(all[0].View().Members) != 3 {
				t.Error("the cluster was affected")
			}
		})
	}
}

// stranger tries to join with another key or label.
func stranger(t *testing.T, to, label, key string) {
	t.Helper()
	conf := memberlist.DefaultLocalConfig()
	conf.Name, conf.BindAddr, conf.BindPort, conf.Label = "stranger", "127.0.0.1", 0, label
	conf.SecretKey, conf.LogOutput = []byte(key), io.Discard
	list, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = list.Shutdown() }()
	if n, err := list.Join([]string{to}); err == nil {
		t.Errorf("joined: %d", n)
	}
}

// Memberlist decompresses messages within messages.
func TestCompressedIsFoundWhenNested(t *testing.T) {
	bomb, ping := []byte{typeCompressed, 1, 2}, []byte{0, 1, 2}
	checked := func(b []byte) []byte { return append([]byte{typeChecked, 0, 0, 0, 0}, b...) }
	compound := func(parts ...[]byte) []byte {
		b := []byte{typeCompound, byte(len(parts))}
		for _, p := range parts {
			b = binary.BigEndian.AppendUint16(b, uint16(len(p)))
		}
		return append(b, bytes.Join(parts, nil)...)
	}
	labeled := func(b []byte) []byte { return append([]byte{typeLabeled, 4, 't', 'e', 's', 't'}, b...) }
	for _, tt := range []struct {
		b    []byte
		want bool
	}{
		{nil, false},
		{ping, false},
		{labeled(ping), false},
		{labeled(checked(compound(ping, ping))), false},
		{[]byte{typeCompound, 200, 1}, false},
		{bomb, true},
		{labeled(bomb), true},
		{labeled(checked(bomb)), true},
		{labeled(checked(compound(ping, ping, bomb))), true},
		{compound(ping, checked(bomb)), true},
		{compound(compound(compound(compound(compound(ping))))), true}, // members never nest this deep
	} {
		if got := isCompressed(tt.b, 4); got != tt.want {
			t.Errorf("%v: %v", tt.b, got)
		}
		if len(tt.b) == 0 || tt.b[0] == typeChecked || tt.b[0] == typeCompound ||
			bytes.Contains(tt.b, []byte{typeChecked}) || bytes.Contains(tt.b, []byte{typeCompound}) {
			continue // datagrams only
		}
		for piece := 1; piece <= len(tt.b); piece++ {
			o, got := streamPrefix{refused: func(string) {}}, false
			for rest := tt.b; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
				got = o.isCompressed(rest[:min(piece, len(rest))]) || got
			}
			if got != tt.want {
				t.Errorf("%v in pieces of %d: %v", tt.b, piece, got)
			}
		}
	}
}
