package cluster

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestParseKeys(t *testing.T) {
	k16, k32 := []byte("0123456789abcdeX"), []byte("0123456789abcdefghijklmnopqrstuX")
	b64 := base64.StdEncoding.EncodeToString
	binary := bytes.Repeat([]byte{0xfe, '\n'}, 16)
	cases := []struct {
		name string
		file string
		want [][]byte
	}{
		{"hex", hex.EncodeToString(k16) + "\n", [][]byte{k16}},
		{"base64", b64(k32), [][]byte{k32}},
		{"base64 for URLs, unpadded", base64.RawURLEncoding.EncodeToString(binary), [][]byte{binary}},
		{"raw text", string(k16) + "\r\n", [][]byte{k16}},
		{"raw binary", string(binary), [][]byte{binary}},
		{"several, with a comment", "# old and new\n\n" + b64(k32) + "\n  " + hex.EncodeToString(k16) + "\n", [][]byte{k32, k16}},
		{"empty", "\n# nothing\n", nil},
		{"too short", "secret", nil},
		{"one good, one bad", b64(k32) + "\nsecret", nil},
	}
	for _, c := range cases {
		got, err := parseKeys([]byte(c.file))
		if (err == nil) != (c.want != nil) || !bytes.Equal(bytes.Join(got, nil), bytes.Join(c.want, nil)) ||
			len(got) != len(c.want) {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the key: %v", c.name, err)
		}
	}
}

func TestRotateKeyInThreeSteps(t *testing.T) {
	oldKey, newKey := strings.Repeat("o!", 16), strings.Repeat("n!", 16)
	file := filepath.Join(t.TempDir(), "keys")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ring, err := memberlist.NewKeyring(nil, []byte(oldKey))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		file, primary string
		keys          int
		changed, ok   bool
	}{
		{oldKey, oldKey, 1, false, true},
		{oldKey + "\n" + newKey, oldKey, 2, true, true},
		{newKey + "\n" + oldKey, newKey, 2, true, true},
		{"half a k", newKey, 2, false, false},
		{newKey, newKey, 1, true, true},
	} {
		write(step.file)
		changed, err := updateKeyring(ring, file)
		if changed != step.changed || (err == nil) != step.ok || string(ring.GetPrimaryKey()) != step.primary ||
			len(ring.GetKeys()) != step.keys {
			t.Errorf("%q: changed %v, %v; primary %q of %d", step.file, changed, err, ring.GetPrimaryKey(),
				len(ring.GetKeys()))
		}
	}
}

// Every key that parseKeys returns has a size that AES accepts.
func FuzzParseKeys(f *testing.F) {
	f.Add([]byte("0123456789abcdef"))
	f.Add([]byte("# x\n00112233445566778899aabbccddeeff\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := parseKeys(b)
		if err == nil && len(keys) == 0 {
			t.Fatal("no key and no error")
		}
		for _, k := range keys {
			if !isKeySize(len(k)) {
				t.Fatalf("a key of %d bytes", len(k))
			}
		}
	})
}

func TestGossipKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := func(name string, lines ...string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	k1, k2 := strings.Repeat("1", 32), strings.Repeat("2", 32)
	all := three(t, func(o *Options) {
		withProbes(o)
		o.Insecure, o.KeyFile = false, keys(o.Node, k1)
	})
	for name, o := range map[string]Options{
		"wrong key":   {KeyFile: keys("wrong", k2), Cluster: "test"},
		"no key":      {Insecure: true, Cluster: "test"},
		"wrong label": {KeyFile: keys("label", k1), Cluster: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			full := options("x", all[0].Gossip())
			full.KeyFile, full.Insecure, full.Cluster = o.KeyFile, o.Insecure, o.Cluster
			x := up(t, full)
			throughout(t, "rejected",
				func() bool { return whole(all...) && len(x.View().Members) == 1 && !x.View().Joined }, rounds(x, 3))
			if got := testutil.ToFloat64(x.metrics.joinFailures.WithLabelValues(failedJoin)); got < 1 {
				t.Error("the failed join is not counted")
			}
		})
	}
	// Change the key in three steps without losing a member.
	for _, step := range [][]string{{k1, k2}, {k2, k1}, {k2}} {
		for _, c := range all {
			keys(c.o.Node, step...)
		}
		for _, c := range all {
			throughout(t, "whole", func() bool { return whole(all...) }, func() bool {
				return string(c.gossip.keys.GetPrimaryKey()) == string(parseKey([]byte(step[0]))) &&
					len(c.gossip.keys.GetKeys()) == len(step)
			})
		}
	}
	late := options("late", all[1].Gossip())
	late.Insecure, late.KeyFile = false, keys("late", k2)
	eventually(t, "a member with the new key alone", func() func() bool {
		c := up(t, late)
		return func() bool { return whole(append([]*Cluster{c}, all...)...) }
	}())
}
