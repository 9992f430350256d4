package holds

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/keyward/keyward/envoy/holds/client"
)

// post sends a body to a verb and returns the status and the JSON of the answer.
func (r *rig) post(t *testing.T, verb, body string) (int, map[string]any) {
	t.Helper()
	resp, err := http.Post("http://"+r.addrs[1].String()+"/holds/"+verb, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("%d %s: %v", resp.StatusCode, b, err)
	}
	return resp.StatusCode, m
}

func TestJSON(t *testing.T) {
	r := start(t)
	const acme = `"domain": "llm", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}]`
	code, m := r.post(t, "reserve", `{`+acme+`, "hits": 600, "ttl": "60s"}`)
	id, _ := m["id"].(string)
	if code != 200 || m["admitted"] != true || len(id) != 32 {
		t.Fatal(code, m)
	}
	if code, m := r.post(t, "reserve", `{`+acme+`, "hits": "600"}`); code != 429 || m["admitted"] != false || m["id"] != "" {
		t.Error(code, m)
	}
	if code, m := r.post(t, "extend", `{`+acme+`, "id": "`+id+`"}`); code != 200 || m["extended"] != true {
		t.Error(code, m)
	}
	if code, m := r.post(t, "commit", `{`+acme+`, "id": "`+id+`", "actual": 0}`); code != 200 {
		t.Error(code, m)
	}
	if code, m := r.post(t, "release", `{`+acme+`, "id": "`+id+`"}`); code != 200 {
		t.Error(code, m)
	}
	code, m = r.post(t, "usage", `{`+acme+`}`)
	if u := m["limits"].([]any)[0].(map[string]any); code != 200 || u["spent"] != "0" || u["held"] != "0" || u["left"] != 1000.0 {
		t.Error(code, m)
	}
	for name, tc := range map[string]struct {
		verb, body string
		code       int
		says       string
	}{
		"no JSON":    {"reserve", `{`, 400, "EOF"},
		"no field":   {"reserve", `{"domian": "llm"}`, 400, `unknown field \"domian\"`},
		"negative":   {"reserve", `{` + acme + `, "hits": -1}`, 400, "invalid value"},
		"no holds":   {"reserve", `{"domain": "llm", "descriptors": [{"entries": [{"key": "plain", "value": "x"}]}]}`, 400, "no rule of these descriptors has holds"},
		"no id":      {"commit", `{` + acme + `}`, 400, "id must not be empty"},
		"too long":   {"usage", `{` + acme + strings.Repeat(" ", MaxMessage) + `}`, 413, "longer than 131072 bytes"},
		"invalid id": {"commit", `{` + acme + `, "id": "` + strings.Repeat("x", maxID+1) + `"}`, 400, "id is longer"},
	} {
		code, m := r.post(t, tc.verb, tc.body)
		text, _ := json.Marshal(m["message"])
		if code != tc.code || !strings.Contains(string(text), tc.says) {
			t.Errorf("%s: %d %s, want %d %s", name, code, text, tc.code, tc.says)
		}
	}
	resp, err := http.Get("http://" + r.addrs[1].String() + "/holds/usage")
	if err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Error(resp, err)
	}
}

// Pages of other sites cannot make holds.
func TestJSONRefusesOtherSites(t *testing.T) {
	r := start(t)
	req, _ := http.NewRequest(http.MethodPost, "http://"+r.addrs[1].String()+"/holds/reserve",
		strings.NewReader(`{"domain": "llm", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}]}`))
	req.Header.Set("Origin", "http://evil.example")
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusForbidden {
		t.Error(resp, err)
	}
	if n := held(t, client.New(r.dial(t, nil), ""), client.Descriptor("tenant", "acme")); n != 0 {
		t.Errorf("%d hits are held", n)
	}
}
