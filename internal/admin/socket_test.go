package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

func TestDrainReportsProgress(t *testing.T) {
	done := make(chan struct{})
	var asked, sent atomic.Int32
	srv := httptest.NewServer(SocketHandler(SocketOptions{
		Status: func() api.SidecarStatus { return api.SidecarStatus{Node: "a"} },
		Drain:  func() <-chan struct{} { asked.Add(1); return done },
		Progress: func() api.DrainStatus {
			switch sent.Add(1) {
			case 1:
				return api.DrainStatus{State: "active"}
			case 2:
				close(done)
				return api.DrainStatus{State: "leaving", Incomplete: 2}
			}
			return api.DrainStatus{State: "leaving", Done: true, Complete: true, HandedOver: 9}
		},
		Every: time.Millisecond,
	}))
	defer srv.Close()
	res, err := http.Post(srv.URL+"/drain", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got []api.DrainStatus
	for lines := json.NewDecoder(res.Body); ; {
		var d api.DrainStatus
		if lines.Decode(&d) != nil {
			break
		}
		got = append(got, d)
	}
	if len(got) != 3 || got[0].Done || got[1].Incomplete != 2 || !got[2].Complete || got[2].HandedOver != 9 || asked.Load() != 1 {
		t.Errorf("%+v", got)
	}
	if res, err := http.Get(srv.URL + "/drain"); err != nil || res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET /drain: %v %v", res.Status, err)
	}
	res, err = http.Get(srv.URL + "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var s api.SidecarStatus
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil || s.Node != "a" {
		t.Errorf("/status: %+v %v", s, err)
	}
}

func TestListenSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	// What a process that was killed leaves behind.
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := ListenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := ListenSocket(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second one: %v", err)
	}
	conn, err := new(net.Dialer).DialContext(context.Background(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenSocket(path); err == nil {
		t.Error("in place of a file")
	}
	if _, err := ListenSocket(filepath.Join(path, "below", "a.sock")); err == nil {
		t.Error("in no folder")
	}
}

func TestSocketPath(t *testing.T) {
	for address, want := range map[string]string{"unix:/a": "/a", "/a": "", "unix:": "", "": "", "tcp:1": ""} {
		if got, err := api.SocketPath(address); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", address, got, err)
		}
	}
}

func TestCounters(t *testing.T) {
	var domain string
	var entries []config.Entry
	var fault error
	h := Handler(Options{Counters: func(d string, e []config.Entry) (api.CounterStatus, error) {
		domain, entries = d, e
		return api.CounterStatus{Count: 4, Limit: 10, Remaining: 6, Reset: 1.5, Owner: "b", Authority: "full", Window: "1m0s"}, fault
	}})
	get := func(query string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/v1/counters?"+query, nil))
		return w.Code, w.Body.String()
	}
	code, body := get(`domain=d&key=a=1&key=b=x%3Dy&key=c&descriptor={"entries":[{"key":"k=","value":"v"}]}`)
	var c map[string]any
	if code != 200 || json.Unmarshal([]byte(body), &c) != nil || c["count"] != 4.0 || c["reset_seconds"] != 1.5 || c["owner"] != "b" {
		t.Errorf("%d %s", code, body)
	}
	want := []config.Entry{{Key: "a", Value: "1"}, {Key: "b", Value: "x=y"}, {Key: "c"}, {Key: "k=", Value: "v"}}
	if domain != "d" || len(entries) != len(want) {
		t.Fatalf("%q %q", domain, entries)
	}
	for i := range want {
		if entries[i] != want[i] {
			t.Errorf("entry %d: %q, want %q", i, entries[i], want[i])
		}
	}
	for _, query := range []string{"", "domain=d", "key=a=1", "domain=d&descriptor={", "domain=d" + strings.Repeat("&key=a=1", 65)} {
		if code, _ := get(query); code != 400 {
			t.Errorf("%q: %d", query, code)
		}
	}
	if fault = api.ErrNoCounter; func() int { code, _ := get("domain=d&key=a"); return code }() != 404 {
		t.Error("no rule")
	}
	if fault = errors.New("x"); func() int { code, _ := get("domain=d&key=a"); return code }() != 503 {
		t.Error("a fault")
	}
}
