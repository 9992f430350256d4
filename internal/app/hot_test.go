package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// admin sends a request to p's admin socket.
func (p *process) admin(t *testing.T, method, path, body string) *http.Response {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// order orders a route for the key k=x.
func (p *process) order(t *testing.T, mode string) (status int, route api.HotRoute, text string) {
	t.Helper()
	res := p.admin(t, http.MethodPost, "/hot", `{"domain":"d","descriptor":{"entries":[{"key":"k","value":"x"}]},"mode":"`+mode+`"}`)
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal(b, &route) // of a refusal there is none
	return res.StatusCode, route, string(b)
}

// hotKeys returns p's /v1/hotkeys.
func (p *process) hotKeys(t *testing.T) (h api.HotKeys) {
	t.Helper()
	if code, b := p.get("/v1/hotkeys"); code != http.StatusOK || json.Unmarshal(b, &h) != nil {
		t.Fatalf("%s: %d %s", p.name, code, b)
	}
	return h
}

func TestOrdersReachEveryMemberUntilCleared(t *testing.T) {
	t.Parallel()
	all := trio(t)
	status, said, text := all[0].order(t, "split")
	if status != http.StatusOK || said.OwnerString != "x" || said.Name != "k=x" || !said.Manual || said.By != "a-0" || len(said.SubKeys) != 3 {
		t.Fatalf("%d %s", status, text)
	}
	everywhere := func(mode hotkey.Mode, by string) func() bool {
		return func() bool {
			return !slices.ContainsFunc(all, func(p *process) bool {
				h := p.hotKeys(t)
				return len(h.Routes) != 1 || hotkey.Mode(h.Routes[0].Mode) != mode || h.Routes[0].By != by
			})
		}
	}
	eventually(t, "the order everywhere", everywhere(hotkey.Spread, "a-0"))
	if status, said, text := all[1].order(t, "pin"); status != http.StatusOK || len(said.SubKeys) != 1 {
		t.Fatalf("%d %s", status, text)
	}
	eventually(t, "the newer order everywhere", everywhere(hotkey.Dedicated, "b-1"))
	if status, _, text := all[2].order(t, "clear"); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	eventually(t, "cleared everywhere", func() bool {
		return !slices.ContainsFunc(all, func(p *process) bool { return len(p.hotKeys(t).Routes) > 0 })
	})
}

func TestOrdersRefused(t *testing.T) {
	t.Parallel()
	p := launch(t, "alone")
	eventually(t, "up", p.up)
	if status, _, text := p.order(t, "split"); status != http.StatusConflict || !strings.Contains(text, "no other member") {
		t.Errorf("alone: %d %s", status, text)
	}
	for body, want := range map[string]int{
		`{"domain":"d","descriptor":{"entries":[{"key":"other","value":"x"}]},"mode":"never"}`: http.StatusNotFound,
		`{"domain":"d","owner_string":"x","mode":"cap"}`:                                       http.StatusConflict, // of which limit?
		`{"domain":"d","owner_string":"x","mode":"never"}`:                                     http.StatusOK,
	} {
		if res := p.admin(t, http.MethodPost, "/hot", body); res.StatusCode != want {
			t.Errorf("%s: %s", body, res.Status)
		}
	}
	for key, want := range map[string]string{
		"shadow": "refuses no request", "quota": "refuses no request", "none": "limit is 0", "short": "shorter than 50ms", "replaced": "replaces",
		"fair": "between tenants",
	} {
		body := `{"domain":"d","descriptor":{"entries":[{"key":"` + key + `","value":"x"}]},"mode":"cap"}`
		res := p.admin(t, http.MethodPost, "/hot", body)
		text, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusConflict || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s %s, want %q", key, res.Status, text, want)
		}
	}
}

// TestCapsFollowRules: a cap that was ordered gets the limit of new rules, and ends if its rule must not be capped.
func TestCapsFollowRules(t *testing.T) {
	old := hotkey.Route{
		Domain: "d", Name: "k=x", Owner: "x", Author: "a", Version: 1, Mode: hotkey.Cap, Manual: true, Limit: 10,
		Window: int64(time.Second), Entries: []hotkey.RouteEntry{{Key: "k", Value: "x"}},
	}
	for rule, want := range map[string]string{
		"rate_limit: {unit: second, requests_per_unit: 10}":                                                               "1 10 1s false",
		"rate_limit: {unit: second, requests_per_unit: 500}":                                                              "1 500 1s true",
		"rate_limit: {unit: minute, requests_per_unit: 10}":                                                               "1 10 1m0s true",
		"rate_limit: {unit: second, requests_per_unit: 10}\n  metadata: {keyward: {algorithm: token_bucket, burst: 300}}": "1 300 1s true",
		"shadow_mode: true\n  rate_limit: {unit: second, requests_per_unit: 10}":                                          "0 0 0s true",
		"rate_limit: {unit: second, requests_per_unit: 10}\n  metadata: {keyward: {fair: {entry: k}}}":                    "0 0 0s true",
		"rate_limit: {unlimited: true}":                                                                                   "0 0 0s true",
	} {
		rules, err := config.Load([]config.File{{Name: "a", Content: []byte("domain: d\ndescriptors:\n- key: k\n  " + rule)}}, config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, changed := recapped(old, rules)
		if got := fmt.Sprintln(r.Mode, r.Limit, time.Duration(r.Window), changed); strings.TrimSpace(got) != want {
			t.Errorf("%s: %s, want %s", rule, got, want)
		}
		if changed {
			r.Version++
			if err := r.Validate(); err != nil {
				t.Errorf("%s: %v", rule, err)
			}
		}
	}
	shared := old
	shared.Entries = nil
	if _, changed := recapped(shared, nil); changed {
		t.Error("a cap without a descriptor changed")
	}
}

// TestCapEndsWithItsRule: members apply new rules to the caps that were ordered from them.
func TestCapEndsWithItsRule(t *testing.T) {
	t.Parallel()
	p := launch(t, "alone")
	eventually(t, "up", p.up)
	if status, _, text := p.order(t, "cap"); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	eventually(t, "the cap", func() bool { return len(p.hotKeys(t).Routes) == 1 })
	file := filepath.Join(filepath.Dir(p.socket), "ratelimit", "config", "a.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(rules, "- key: k\n", "- key: k\n    shadow_mode: true\n", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no cap of a rule in shadow mode", func() bool { return len(p.hotKeys(t).Routes) == 0 })
}

func TestTapShowsWhatIsAsked(t *testing.T) {
	t.Parallel()
	all := trio(t)
	tapped := map[*process]*json.Decoder{}
	for _, p := range all {
		tapped[p] = json.NewDecoder(p.admin(t, http.MethodGet, "/v1/tap?n=1&rate=1000&key=k%3Dx", "").Body)
	}
	by := ""
	for _, p := range all {
		p.hit(t, "other", 1)
		p.hit(t, "x", 7)
		var d api.TapDecision
		if err := tapped[p].Decode(&d); err != nil {
			t.Fatal(err)
		}
		if by == "" {
			by = d.Owner
		}
		path := "forwarded"
		if p.name == by {
			path = "local"
		}
		if d.Member != p.name || d.Domain != "d" || d.Descriptor != "k=x" || d.Hits != 7 || d.Code != "OK" || d.Rule != "d.k" ||
			d.Owner != by || d.Path != path || d.Authority != "full" || *d.Limit != 1000 {
			t.Errorf("%s: %+v", p.name, d)
		}
		if err := tapped[p].Decode(&d); err != io.EOF {
			t.Errorf("after the one that was asked for: %+v %v", d, err)
		}
	}
	if code, _ := all[0].get("/v1/tap"); code != http.StatusNotFound {
		t.Errorf("values on an open port: %d", code)
	}
}
