package cluster

import (
	"bytes"
	"crypto/rand"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/keyward/keyward/internal/membership"
)

// nonsense returns messages that may come from the network: random, truncated, mislabeled, oversized.
func nonsense(seed uint64) [][]byte {
	r := mathrand.New(mathrand.NewPCG(seed, 1))
	out := [][]byte{
		{}, {0}, {244}, {244, 0}, {244, 255, 'x'}, {9, 255, 255, 255, 255}, {10, 0xff, 0xff}, []byte("GET / HTTP/1.1\r\n\r\n"),
		bytes.Repeat([]byte{7}, 1400), append([]byte{244, 4}, "test"...), append([]byte{244, 5}, "wrong"...),
		append([]byte{244, 4}, "test\x09\xff\xff\xff\xff"...), append([]byte{244, 4}, "test\x0a\x00\x00\x10\x00"...),
		append([]byte{244, 4}, "test\x06\x81\xa3Cnt\xff"...),
	}
	for range 200 {
		b := make([]byte, r.IntN(1500))
		_, _ = rand.Read(b)
		if len(b) > 0 {
			b[0] = byte(r.IntN(16)) // mostly known message types
		}
		if r.IntN(2) == 0 {
			b = append([]byte("\xf4\x04test"), b...)
		}
		out = append(out, b)
	}
	return out
}

// pour sends all messages to addr, as datagrams and as streams.
func pour(t *testing.T, addr string, all [][]byte) {
	t.Helper()
	udp, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	for i, b := range all {
		_, _ = udp.Write(b)
		if i%4 != 0 {
			continue
		}
		tcp, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			t.Fatalf("the port is closed: %v", err)
		}
		_, _ = tcp.Write(b)
		_ = tcp.(*net.TCPConn).CloseWrite()
		_ = tcp.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.Copy(io.Discard, tcp)
		_ = tcp.Close()
	}
}

func TestGarbageOnTheGossipPort(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, keyFile := range map[string]string{"plaintext": "", "encrypted": key} {
		t.Run(name, func(t *testing.T) {
			all := three(t, func(o *Options) { o.KeyFile = keyFile })
			before := all[0].View().Ring.Fingerprint()
			for i, c := range all {
				pour(t, c.Gossip(), nonsense(uint64(i)))
			}
			throughout(t, "whole", func() bool { return whole(all...) && all[0].View().Ring.Fingerprint() == before },
				rounds(all[0], 2))
			all[1].SetRules(4, 4)
			eventually(t, "still connected", func() bool { m, _ := all[2].View().Find("b"); return m.InForce == 4 })
		})
	}
}

// A memberlist node that is not a Keyward member, or supports no common protocol version, does not become a member,
// even with the right label and key.
func TestForeignNodesAreRejected(t *testing.T) {
	t.Parallel()
	all := three(t, nil)
	alien := full()
	alien.ID, alien.ProtocolMin, alien.ProtocolMax = "alien", membership.ProtocolMax+1, membership.ProtocolMax+2
	for name, meta := range map[string][]byte{"no metadata": nil, "other metadata": []byte("{}"), "later protocol": encode(&alien)} {
		conf := memberlist.DefaultLocalConfig()
		conf.Name, conf.BindAddr, conf.BindPort, conf.Label = name, "127.0.0.1", 0, "test"
		conf.LogOutput, conf.EnableCompression = io.Discard, false // compressed messages are not read
		conf.Delegate = &fixed{table: newTable(alien), meta: meta}
		list, err := memberlist.Create(conf)
		if err != nil {
			t.Fatal(err)
		}
		refused := all[0].table.refusedCount()
		_, _ = list.Join([]string{all[0].Gossip()})
		eventually(t, name+" is refused", func() bool { return all[0].table.refusedCount() > refused })
		throughout(t, "whole", func() bool { return whole(all...) && len(all[0].View().Members) == 3 },
			rounds(all[0], 1))
		if err := list.Shutdown(); err != nil {
			t.Error(err)
		}
	}
}

// fixed announces fixed metadata.
type fixed struct {
	*table
	meta []byte
}

// NodeMeta returns the metadata.
func (f *fixed) NodeMeta(int) []byte { return f.meta }
