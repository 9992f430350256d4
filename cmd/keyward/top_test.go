package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/keyward/keyward/admin"
)

// recorded serves what three running members said: test/e2e keeps it when KEYWARD_RECORD names a folder.
func recorded(t *testing.T) (addrs []string) {
	for i := range 3 {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := os.ReadFile(filepath.Join("testdata", "top", fmt.Sprintf("%s.%d.json", filepath.Base(r.URL.Path), i)))
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(b)
		}))
		t.Cleanup(srv.Close)
		addrs = append(addrs, strings.TrimPrefix(srv.URL, "http://"))
	}
	return addrs
}

func TestTopGolden(t *testing.T) {
	f := look(t.Context(), recorded(t))
	f.Time = time.Date(2026, 11, 22, 0, 14, 10, 0, time.UTC)
	for file, draw := range map[string]func(*bytes.Buffer){
		"frame.txt":         func(b *bytes.Buffer) { f.draw(b, size{}, false) },
		"frame.holders.txt": func(b *bytes.Buffer) { f.draw(b, size{120, 24}, true) },
		"frame.small.txt":   func(b *bytes.Buffer) { f.draw(b, size{60, 5}, true) },
	} {
		var b bytes.Buffer
		draw(&b)
		golden(t, filepath.Join("testdata", "top", file), b.String())
	}
}

func TestTopKeepsItsSize(t *testing.T) {
	f := look(t.Context(), recorded(t))
	for range 100 {
		f.Keys = append(f.Keys, f.Keys[0])
	}
	for _, to := range []size{{60, 20}, {1, 1}, {3, 2}, {200, 50}} {
		var b bytes.Buffer
		f.draw(&b, to, true)
		lines := slices.Collect(strings.Lines(b.String()))
		if len(lines) > to.height || to.height > 2 && len(lines) < to.height-1 {
			t.Errorf("%v: %d lines", to, len(lines))
		}
		for _, line := range lines {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > to.width {
				t.Errorf("%v: %d columns: %q", to, n, line)
			}
		}
	}
}

func TestTopPutsMembersTogether(t *testing.T) {
	addrs := recorded(t)
	f := look(t.Context(), append(addrs, addrs[0], "127.0.0.1:1"))
	if len(f.Members) != 3 || len(f.Keys) != 1 || len(f.Keys[0].Held) != 2 || len(f.Routes) != 1 || f.Keys[0].Route == nil {
		t.Errorf("one of them asked twice: %+v", f)
	}
	if len(f.Silent) != 1 || !strings.HasPrefix(f.Silent[0], "127.0.0.1:1: ") || strings.Contains(f.Silent[0], "http:") {
		t.Errorf("silent: %q", f.Silent)
	}
	at := time.Unix(1e9, 0)
	route := func(mode string, since time.Time) said {
		var m admin.HotMode
		if err := m.UnmarshalText([]byte(mode)); err != nil {
			t.Fatal(err)
		}
		return said{hot: admin.HotKeys{Member: mode, Routes: []admin.HotRoute{{Domain: "d", OwnerString: "k", Mode: m, Since: since}}}}
	}
	f = newFrame(at, []said{route("pin", at.Add(2)), route("split", at.Add(3)), route("never", at.Add(1))})
	if len(f.Routes) != 1 || f.Routes[0].Mode.String() != "split" {
		t.Errorf("the newest is split: %+v", f.Routes)
	}
}

func TestTopFindsTheOthers(t *testing.T) {
	c := &admin.Cluster{Self: "a", Members: []admin.Member{
		{ID: "a", Role: "member", Peer: "10.0.0.1:7947"}, {ID: "b", Role: "member", Peer: "10.0.0.2:7947", Gossip: "10.9.9.9:7946"},
		{ID: "c", Role: "member", Gossip: "[fd00::3]:7946"}, {ID: "xds", Role: "observer", Gossip: "10.0.0.4:7946"}, {ID: "d", Role: "member"},
	}}
	got := others("localhost:9090", c)
	if len(got) != 2 || got["b"] != "10.0.0.2:9090" || got["c"] != "[fd00::3]:9090" {
		t.Errorf("%v", got)
	}
	// All on one machine: the guess is the one that was asked already.
	f := look(t.Context(), recorded(t)[:1])
	if len(f.Members) != 1 || len(f.Silent) != 2 || !strings.Contains(f.Silent[0], "name every member with --addr") {
		t.Errorf("%+v", f)
	}
}

// Keys come from whoever sends requests: they must not move the cursor, clear the screen or turn text around.
func TestNothingWritesToTheScreen(t *testing.T) {
	evil := "k=\x1b[2J\x1b]0;title\a\r\n\u202e\xff\u009b31m"
	f := newFrame(time.Unix(1e9, 0), []said{
		{hot: admin.HotKeys{Member: evil, Keys: []admin.HotKey{{Domain: evil, Name: evil, Digest: "1", Holders: []admin.Holder{{Member: evil}}}}, Routes: []admin.HotRoute{
			{Domain: evil, Name: evil, By: evil, SubKeys: []admin.SubKey{{Member: evil}}, Mode: 3, Manual: true},
		}}},
		{addr: evil, err: os.ErrNotExist},
	})
	var b bytes.Buffer
	f.draw(&b, size{}, true)
	limit := uint32(1)
	printDecision(&b, &admin.Decision{Domain: evil, Descriptor: evil, Owner: evil, Limit: &limit, Remaining: &limit, Path: "forwarded"})
	if err := printHot(&b, &admin.HotKeys{Member: evil, Keys: []admin.HotKey{{Name: evil, Hot: true}}, Routes: f.Routes}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b\a\r\u202e\u009b") || !utf8.Valid(b.Bytes()) {
		t.Errorf("%q", b.String())
	}
	if !strings.Contains(b.String(), `k=\x1b[2J`) {
		t.Errorf("what it was is not told:\n%s", b.String())
	}
}

func TestTopOnce(t *testing.T) {
	addrs := recorded(t)
	var b bytes.Buffer
	if err := runTop(t.Context(), &b, &topOptions{addrs: addrs, once: true, output: "json", every: time.Hour}); err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := json.Unmarshal(b.Bytes(), &f); err != nil || len(f.Keys) != 1 || f.Keys[0].Owner != "pod-a" || f.Keys[0].Name != "api_key=alice" {
		t.Errorf("%v\n%s", err, b.String())
	}
	for _, o := range []topOptions{
		{addrs: []string{"127.0.0.1:1"}, once: true, output: "text", every: time.Hour},
		{addrs: addrs, once: true, output: "yaml", every: time.Hour},
		{addrs: addrs, output: "text"},
	} {
		if err := runTop(t.Context(), &b, &o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
