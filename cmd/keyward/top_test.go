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

	"github.com/keyward/keyward/internal/api"
)

// recorded serves what three running members said: test/e2e keeps it when KEYWARD_RECORD names a folder.
func recorded(t *testing.T) (pages []string) {
	for i := range 3 {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := os.ReadFile(filepath.Join("testdata", "top", fmt.Sprintf("%s.%d.json", filepath.Base(r.URL.Path), i)))
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(b)
		}))
		t.Cleanup(srv.Close)
		pages = append(pages, srv.URL)
	}
	return pages
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
	pages := recorded(t)
	f := look(t.Context(), append(pages, pages[0], "http://127.0.0.1:1"))
	if len(f.Members) != 3 || len(f.Keys) != 1 || len(f.Keys[0].Held) != 2 || len(f.Routes) != 1 || f.Keys[0].Route == nil {
		t.Errorf("one of them asked twice: %+v", f)
	}
	if len(f.Silent) != 1 || !strings.HasPrefix(f.Silent[0], "127.0.0.1:1: connection refused: start the member") || strings.Contains(f.Silent[0], "http:") {
		t.Errorf("silent: %q", f.Silent)
	}
	at := time.Unix(1e9, 0)
	route := func(mode string, since time.Time) said {
		var m api.HotMode
		if err := m.UnmarshalText([]byte(mode)); err != nil {
			t.Fatal(err)
		}
		return said{hot: api.HotKeys{Member: mode, Routes: []api.HotRoute{{Domain: "d", OwnerString: "k", Mode: m, Since: since}}}}
	}
	f = newFrame(at, []said{route("pin", at.Add(2)), route("split", at.Add(3)), route("never", at.Add(1))})
	if len(f.Routes) != 1 || f.Routes[0].Mode.String() != "split" {
		t.Errorf("the newest is split: %+v", f.Routes)
	}
}

// member is a page that answers like one of a cluster's members, which knows of the others.
func member(t *testing.T, id string, others ...api.MemberStatus) (addr string) {
	t.Helper()
	return page(t, map[string]any{
		"/cluster":    api.ClusterStatus{Self: id, Members: others},
		"/v1/hotkeys": api.HotKeys{Member: id}, "/v1/leases": api.HeldLeases{Member: id},
	})
}

// TestTopFindsTheOthers holds that one page is enough, that each member is asked once, and that those that do not
// answer are named with the reason and what to do.
func TestTopFindsTheOthers(t *testing.T) {
	c := member(t, "c")
	b := member(t, "b", api.MemberStatus{ID: "c", Role: "member", Page: c})
	a := member(t, "a", api.MemberStatus{ID: "a", Role: "member", Page: "10.0.0.1:9090"}, api.MemberStatus{ID: "b", Role: "member", Page: b},
		api.MemberStatus{ID: "gone", Role: "member", Page: "127.0.0.1:1"}, api.MemberStatus{ID: "moved", Role: "member", Page: c},
		api.MemberStatus{ID: "mute", Role: "member"}, api.MemberStatus{ID: "xds", Role: "observer", Page: "127.0.0.1:2"})
	f := look(t.Context(), []string{"http://" + a})
	if !slices.Equal(f.Members, []string{"a", "b", "c"}) {
		t.Errorf("shown: %q", f.Members)
	}
	reach := "set --member to an address that is reachable from here, as after kubectl port-forward"
	for _, want := range []string{
		"gone at 127.0.0.1:1: connection refused: start the member, or " + reach, "moved at " + c + ": another member answers at this address: " + reach,
		"mute: its address is unknown: add it to --member",
	} {
		if !slices.Contains(f.Silent, want) {
			t.Errorf("%q is not in %q", want, f.Silent)
		}
	}
	if len(f.Silent) != 3 {
		t.Errorf("silent: %q", f.Silent)
	}
}

// TestTopTakesMembersAsDoctorDoes holds that what names members to one command names them to the others.
func TestTopTakesMembersAsDoctorDoes(t *testing.T) {
	b := member(t, "b")
	a := member(t, "a", api.MemberStatus{ID: "b", Role: "member", Page: b})
	t.Setenv("KEYWARD_MEMBERS", a)
	for _, args := range [][]string{{}, {"--member", a}, {"--members", a}, {"--addr", a}, {"--member", a + "," + b}, {"--member", "http://" + a + "/"}} {
		out, err := run(t, append([]string{"top", "--once"}, args...)...)
		if err != nil || !strings.Contains(out, "2 members") || strings.Contains(out, "not shown") {
			t.Errorf("top %q: %v\n%s", args, err, out)
		}
	}
	for _, flag := range []string{"--members", "--addr"} {
		for _, args := range []string{"doctor", "keys get d k=v", "xds status"} {
			if out, err := run(t, append(strings.Fields(args), flag, "nowhere")...); err == nil || !strings.Contains(err.Error(), "want host:port") {
				t.Errorf("%s %s: %v\n%s", args, flag, err, out)
			}
		}
	}
	if out, err := run(t, "explain", "shop", "plan=x", "--rules", "testdata/shop.yaml", "--members", "pod-0"); err != nil {
		t.Errorf("explain has a --members of its own: %v\n%s", err, out)
	}
	_, err := run(t, "top", "--once", "--member", "127.0.0.1:1,127.0.0.1:2")
	if err == nil || strings.Count(err.Error(), "connection refused: start the member") != 2 {
		t.Errorf("no member answers: %v", err)
	}
}

// Keys come from clients: they must not move the cursor, clear the screen or reverse text.
func TestNothingWritesToTheScreen(t *testing.T) {
	evil := "k=\x1b[2J\x1b]0;title\a\r\n\u202e\xff\u009b31m"
	f := newFrame(time.Unix(1e9, 0), []said{
		{hot: api.HotKeys{Member: evil, Keys: []api.HotKeyStatus{{Domain: evil, Name: evil, Digest: "1", Holders: []api.LeaseHolder{{Member: evil}}}}, Routes: []api.HotRoute{
			{Domain: evil, Name: evil, By: evil, SubKeys: []api.RouteSubKey{{Member: evil}}, Mode: 3, Manual: true},
		}}},
		{page: evil, name: evil, err: os.ErrNotExist},
	})
	var b bytes.Buffer
	f.draw(&b, size{}, true)
	limit := uint32(1)
	printDecision(&b, &api.TapDecision{Domain: evil, Descriptor: evil, Owner: evil, Limit: &limit, Remaining: &limit, Path: "forwarded"})
	if err := printHot(&b, &api.HotKeys{Member: evil, Keys: []api.HotKeyStatus{{Name: evil, Hot: true}}, Routes: f.Routes}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b\a\r\u202e\u009b") || !utf8.Valid(b.Bytes()) {
		t.Errorf("%q", b.String())
	}
	if !strings.Contains(b.String(), `k=\x1b[2J`) {
		t.Errorf("its error is missing:\n%s", b.String())
	}
}

func TestTopOnce(t *testing.T) {
	pages := recorded(t)
	var b bytes.Buffer
	if err := runTop(t.Context(), &b, &topOptions{pages: pages, once: true, output: "json", every: time.Hour}); err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := json.Unmarshal(b.Bytes(), &f); err != nil || len(f.Keys) != 1 || f.Keys[0].Owner != "pod-a" || f.Keys[0].Name != "api_key=alice" {
		t.Errorf("%v\n%s", err, b.String())
	}
	for _, o := range []topOptions{
		{pages: []string{"http://127.0.0.1:1"}, once: true, output: "text", every: time.Hour},
		{pages: pages, once: true, output: "yaml", every: time.Hour},
		{pages: pages, output: "text"},
	} {
		if err := runTop(t.Context(), &b, &o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
