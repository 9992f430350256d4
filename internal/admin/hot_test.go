package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/api"
)

func TestHotOrders(t *testing.T) {
	var got []api.HotOrder
	srv := httptest.NewServer(SocketHandler(SocketOptions{Hot: func(o api.HotOrder) (api.HotRoute, error) {
		got = append(got, o)
		switch o.OwnerString {
		case "unknown":
			return api.HotRoute{}, fmt.Errorf("%s: %w", o.Domain, api.ErrNoCounter)
		case "impossible":
			return api.HotRoute{}, fmt.Errorf("no members")
		}
		return api.HotRoute{Domain: o.Domain, Mode: *o.Mode, Manual: true, SubKeys: []api.RouteSubKey{{Key: "k#0", Member: "a"}}}, nil
	}}))
	defer srv.Close()
	post := func(body string) (int, string) {
		t.Helper()
		res, err := http.Post(srv.URL+"/hot", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	code, body := post(`{"domain":"d","descriptor":{"entries":[{"key":"k","value":"v"}]},"mode":"split","members":3}`)
	var route api.HotRoute
	if err := json.Unmarshal([]byte(body), &route); code != 200 || err != nil || hotkey.Mode(route.Mode) != hotkey.Spread || route.SubKeys[0].Member != "a" {
		t.Errorf("split: %d %s %v", code, body, err)
	}
	if len(got) != 1 || got[0].Members != 3 || len(Entries(got[0].Descriptor)) != 1 || Entries(got[0].Descriptor)[0].Value != "v" {
		t.Errorf("split: %+v", got)
	}
	for mode, want := range map[string]hotkey.Mode{"clear": hotkey.Auto, "cap": hotkey.Cap, "pin": hotkey.Dedicated, "never": hotkey.Never} {
		if code, body := post(`{"domain":"d","owner_string":"o","mode":"` + mode + `"}`); code != 200 || hotkey.Mode(*got[len(got)-1].Mode) != want {
			t.Errorf("%s: %d %s", mode, code, body)
		}
	}
	taken := len(got)
	for body, why := range map[string]string{
		`{"owner_string":"o","mode":"pin"}`:                                                "domain is missing",
		`{"domain":"d","owner_string":"o"}`:                                                "mode is missing",
		`{"domain":"d","owner_string":"o","mode":"hot"}`:                                   "want one of",
		`{"domain":"d","mode":"pin"}`:                                                      "name the key",
		`{"domain":"d","owner_string":"o","descriptor":{"entries":[]},"mode":"pin"}`:       "name the key",
		`{"domain":"d","descriptor":{"entries":[]},"mode":"pin"}`:                          "0 entries",
		`{"domain":"d","owner_string":"o","mode":"pin","members":2}`:                       "applies to a split only",
		`{"domain":"d","owner_string":"o","mode":"split","members":1}`:                     "want 2 to 16",
		`{"domain":"d","owner_string":"o","mode":"split","members":17}`:                    "want 2 to 16",
		`{"domain":"d","owner_string":"o","mode":"split","memebrs":4}`:                     "memebrs",
		`{"domain":"d","owner_string":"` + strings.Repeat("o", 70<<10) + `","mode":"pin"}`: "too large",
		`split it`: "invalid",
	} {
		if code, said := post(body); code != http.StatusBadRequest || !strings.Contains(said, why) {
			t.Errorf("%.80s: %d %s, want %s", body, code, said, why)
		}
	}
	if len(got) != taken {
		t.Errorf("%d bad orders were carried out", len(got)-taken)
	}
	for owner, want := range map[string]int{"unknown": http.StatusNotFound, "impossible": http.StatusConflict} {
		if code, said := post(`{"domain":"d","owner_string":"` + owner + `","mode":"pin"}`); code != want {
			t.Errorf("%s: %d %s", owner, code, said)
		}
	}
	if res, err := http.Get(srv.URL + "/hot"); err != nil || res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET /hot: %v %v", res.Status, err)
	}
}

func TestHotKeysAreOnPageAndSocket(t *testing.T) {
	keys := func() api.HotKeys { return api.HotKeys{Member: "a", Keys: []api.HotKeyStatus{{Name: "k=v", Lent: 5}}} }
	page := httptest.NewServer(Handler(Options{HotKeys: keys, Leases: func() api.HeldLeases {
		return api.HeldLeases{Member: "a", Keys: []api.HeldLease{{Name: "k=w", Left: 3}}}
	}}))
	defer page.Close()
	socket := httptest.NewServer(SocketHandler(SocketOptions{HotKeys: keys}))
	defer socket.Close()
	for _, at := range []string{page.URL, socket.URL} {
		var got api.HotKeys
		fetch(t, at+"/v1/hotkeys", &got)
		if got.Member != "a" || len(got.Keys) != 1 || got.Keys[0].Lent != 5 {
			t.Errorf("%+v", got)
		}
	}
	escrows := httptest.NewServer(Handler(Options{Escrows: func() api.Escrows { return api.Escrows{Region: "eu", Keys: []api.KeyEscrow{{Left: 3}}} }}))
	defer escrows.Close()
	var shared api.Escrows
	if fetch(t, escrows.URL+"/v1/escrows", &shared); shared.Region != "eu" || shared.Keys[0].Left != 3 {
		t.Errorf("%+v", shared)
	}
	quotas := httptest.NewServer(Handler(Options{Quotas: func() api.Quotas {
		return api.Quotas{Streams: 2, Keys: []api.AssignedKey{{Name: "k=v", Envoys: []api.EnvoyQuota{{Name: "e", Left: 3}}}}}
	}}))
	defer quotas.Close()
	var spent api.Quotas
	if fetch(t, quotas.URL+"/v1/quotas", &spent); spent.Streams != 2 || spent.Keys[0].Envoys[0].Left != 3 {
		t.Errorf("%+v", spent)
	}
	modules := httptest.NewServer(Handler(Options{Modules: func() api.Modules {
		return api.Modules{Total: 2, Envoys: []api.ModuleEnvoy{{Node: "e", Keys: []api.ModuleKey{{Name: "k=v", Left: 3}}}}}
	}}))
	defer modules.Close()
	var leased api.Modules
	if fetch(t, modules.URL+"/v1/modules", &leased); leased.Total != 2 || leased.Envoys[0].Keys[0].Left != 3 {
		t.Errorf("%+v", leased)
	}
	var held api.HeldLeases
	fetch(t, page.URL+"/v1/leases", &held)
	if len(held.Keys) != 1 || held.Keys[0].Left != 3 {
		t.Errorf("%+v", held)
	}
	for _, path := range []string{"/v1/tap", "/hot"} { // what shows values or changes something
		if res, err := http.Get(page.URL + path); err != nil || res.StatusCode != http.StatusNotFound {
			t.Errorf("%s on the page: %v %v", path, res.Status, err)
		}
	}
}

func fetch(t *testing.T, url string, into any) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", url, res.Status, err)
	}
}
