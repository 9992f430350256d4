package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
)

// serve answers on an admin socket.
func serve(t *testing.T, o admin.SocketOptions) (socket string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := admin.ListenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	srv := http.Server{Handler: admin.SocketHandler(o), ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return "unix:" + path
}

// run runs the tool as a shell would.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestHotCommands(t *testing.T) {
	var got []string
	socket := serve(t, admin.SocketOptions{Hot: func(o api.HotOrder) (api.HotRoute, error) {
		text := fmt.Sprintf("%v %s %q %d", o.Mode, o.Domain, o.OwnerString, o.Members)
		if o.Descriptor != nil {
			text += fmt.Sprint(" ", o.Descriptor.Entries)
		}
		got = append(got, text)
		if o.Domain == "unknown" {
			return api.HotRoute{}, api.ErrNoCounter
		}
		return api.HotRoute{Domain: o.Domain, Name: "k=v", Mode: *o.Mode, Manual: true, By: "pod-a", SubKeys: []api.RouteSubKey{{Member: "pod-b"}, {Member: "pod-c"}}}, nil
	}})
	for args, want := range map[string][2]string{
		"hot split edge k=v l=a=b --members 8": {`split edge "" 8 [{k v} {l a=b}]`, "edge k=v: split over pod-b pod-c, manual; pod-a announces it\n"},
		"hot split edge k=v":                   {`split edge "" 0 [{k v}]`, "split over"},
		"hot pin edge k=v":                     {`pin edge "" 0 [{k v}]`, "pinned to"},
		"hot cap edge k=v":                     {`cap edge "" 0 [{k v}]`, "capped by Envoy, manual"},
		"hot quota edge k=v":                   {`quota edge "" 0 [{k v}]`, "spent by Envoy without calls, manual"},
		"hot never edge --owner-string v":      {`never edge "v" 0`, "left alone, manual"},
		"hot clear edge k=v":                   {`clear edge "" 0 [{k v}]`, "automatic"},
	} {
		got = nil
		out, err := run(t, append(strings.Fields(args), "--admin", socket)...)
		if err != nil || len(got) != 1 || got[0] != want[0] || !strings.Contains(out, want[1]) {
			t.Errorf("%s: sent %q, printed %q, %v", args, got, out, err)
		}
	}
	got = nil
	for args, why := range map[string]string{
		"hot split edge k":                    "want KEY=VALUE",
		"hot split edge":                      "name the key",
		"hot split edge k=v --owner-string v": "name the key",
		"hot split edge k=v --members 1":      "want 2 to 16",
		"hot pin edge k=v --members 4":        "unknown flag",
		"hot pin":                             "at least 1",
	} {
		if out, err := run(t, append(strings.Fields(args), "--admin", socket)...); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v %q", args, err, out)
		}
	}
	if len(got) != 0 {
		t.Errorf("sent: %q", got)
	}
	if _, err := run(t, "hot", "pin", "unknown", "k=v", "--admin", socket); err == nil || !strings.Contains(err.Error(), "no rule limits") {
		t.Errorf("no rule: %v", err)
	}
	if _, err := run(t, "hot", "list", "--admin", "unix:"+filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("no sidecar answers: no error")
	}
}

func TestHotList(t *testing.T) {
	h := api.HotKeys{Member: "pod-a"}
	socket := serve(t, admin.SocketOptions{HotKeys: func() api.HotKeys { return h }})
	out, err := run(t, "hot", "list", "--admin", socket)
	if err != nil || !strings.Contains(out, "No key has a route.") || !strings.Contains(out, "No key that pod-a counts is hot.") {
		t.Errorf("nothing: %v\n%s", err, out)
	}
	h.Routes = []api.HotRoute{{Domain: "edge", Name: "k=v", Mode: api.HotMode(hotkey.Dedicated), By: "pod-b", SubKeys: []api.RouteSubKey{{Member: "pod-c"}}}}
	h.Keys = []api.HotKeyStatus{{Domain: "edge", Name: "k=v", Rate: 1234.4, Hot: true, Limit: 500, Window: "1s", Used: 250}, {Name: "leased only"}}
	out, err = run(t, "hot", "list", "--admin", socket)
	for _, want := range []string{"edge k=v  pinned to pod-c  pod-b", "HOT AT pod-a", "edge k=v      1234            500/s         250 (50 %)"} {
		if err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("%v, no %q in\n%s", err, want, out)
		}
	}
	h.Keys[0].Relief = []api.HotRelief{{Kind: "lease", Why: "a sliding_log is never lent"}, {Kind: "split"}, {Kind: "cap", With: "hot-filters"}}
	h.Envoys = []api.HotEnvoy{{Node: "a", Routes: true}, {Node: "b", Spreads: true, Caps: []string{"edge"}}, {Node: "c", Caps: []string{"other"}}}
	out, err = run(t, "hot", "list", "--admin", socket)
	for _, want := range []string{"no lease: a sliding_log is never lent", "split: by 2 of 3 Envoys here; the others need --hot-filters or --hot-routes",
		"cap: by 1 of 3 Envoys here; the others need --hot-filters"} {
		if err != nil || !strings.Contains(out, "  "+want+"\n") {
			t.Errorf("%v, no %q in\n%s", err, want, out)
		}
	}
	if strings.Contains(out, "leased only") {
		t.Errorf("a key that is not hot:\n%s", out)
	}
	out, err = run(t, "hot", "list", "--admin", socket, "-o", "json")
	var back api.HotKeys
	if err != nil || json.Unmarshal([]byte(out), &back) != nil || len(back.Keys) != 2 || back.Routes[0].Mode != h.Routes[0].Mode {
		t.Errorf("json: %v\n%s", err, out)
	}
}

func TestHotQuotaList(t *testing.T) {
	route := func(key, state string) api.HotRoute {
		return api.HotRoute{Domain: "edge", Name: "k=" + key, Mode: api.HotMode(hotkey.Quota), By: "pod-b", Quota: state}
	}
	relief := func(why string) []api.HotRelief { return []api.HotRelief{{Kind: "lease"}, {Kind: "quota", Why: why}} }
	hot := api.HotKeys{
		Member: "pod-a", Routes: []api.HotRoute{route("a", api.QuotaSwitched), route("b", api.QuotaPriming), route("c", ""), {Domain: "edge", Name: "k=split", Mode: api.HotMode(hotkey.Spread)}},
		Keys: []api.HotKeyStatus{
			{Domain: "edge", Name: "k=a", Hot: true, Relief: relief("")}, {Domain: "edge", Name: "k=d", Hot: true, Relief: relief("")},
			{Domain: "edge", Name: "k=e", Hot: true, Relief: relief("no header")}, {Domain: "edge", Name: "k=cold", Relief: relief("")},
		},
	}
	var out bytes.Buffer
	if err := printHotQuota(&out, &hot); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line)[:3], " "))
	}
	want := "KEY AT THE|edge k=a switched|edge k=b priming|edge k=c not|edge k=d will|edge k=e no"
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("%s, want %s", text, want)
	}
}

func TestTapCommand(t *testing.T) {
	limit, left := uint32(10), uint32(4)
	var asked admin.TapQuery
	socket := serve(t, admin.SocketOptions{Tap: func(q admin.TapQuery, see func(api.TapDecision)) (stop func()) {
		asked = q
		see(api.TapDecision{Member: "pod-a", Domain: "edge", Descriptor: "k=v", Hits: 2, Code: "OVER_LIMIT", Path: "forwarded", Authority: "share", Owner: "pod-b", Limit: &limit, Remaining: &left})
		see(api.TapDecision{Member: "pod-a", Domain: "edge", Descriptor: "k=w", Hits: 1, Code: "OK", Path: "local", Authority: "full", Owner: "pod-a", Limit: &limit, Remaining: &left})
		see(api.TapDecision{Member: "pod-a", Domain: "edge", Descriptor: "x=y", Hits: 1, Code: "OK"})
		return func() {}
	}})
	out, err := run(t, "tap", "--admin", socket, "-n", "3", "--over", "--domain", "edge", "--key", "k=", "--rate", "1000")
	if want := (admin.TapQuery{Domain: "edge", Key: "k=", Over: true, Rate: 1000}); err != nil || asked != want {
		t.Errorf("asked %+v, want %+v: %v", asked, want, err)
	}
	for _, want := range []string{
		" OVER edge k=v hits=2 left=4/10 forwarded owner=pod-b authority=share\n", " ok   edge k=w hits=1 left=4/10 local\n", " ok   edge x=y hits=1 no limit\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, err = run(t, "tap", "--admin", socket, "-n", "2", "-o", "json")
	if err != nil || strings.Count(out, "\n") != 2 || !strings.HasPrefix(out, `{"time":`) {
		t.Errorf("json: %v\n%s", err, out)
	}
	for _, bad := range []string{"--rate=0", "--rate=1001", "-n=-1", "--output=yaml"} {
		if out, err := run(t, "tap", "--admin", socket, bad); err == nil {
			t.Errorf("%s: no error\n%s", bad, out)
		}
	}
}

func TestTapEndsByCtrlC(t *testing.T) {
	listening, ended := make(chan struct{}), make(chan error)
	socket := serve(t, admin.SocketOptions{Tap: func(admin.TapQuery, func(api.TapDecision)) (stop func()) {
		close(listening)
		return func() {}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- runTap(ctx, io.Discard, &tapOptions{socket: &socket, output: "text", rate: 10}) }()
	<-listening
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
