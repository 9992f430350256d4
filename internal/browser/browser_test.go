package browser

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// A page can only use its own name, which is public. All other names are served.
func TestHosts(t *testing.T) {
	h, err := NewHosts("keyward.example.org", "*.Corp.Example.")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{
		"", "127.0.0.1", "127.0.0.1:9090", "[::1]:9090", "[::1]", "::1", "[fe80::1%eth0]:9090", "10.1.2.3:8080", "localhost", "LOCALHOST:9090", "localhost.",
		"a.localhost:1", "keyward", "sidecar-0:9090", "keyward.prod.svc", "keyward.prod.svc:9090", "keyward.prod.svc.cluster.local.", "10-1-2-3.prod.pod.cluster.local",
		"keyward.example.org", "KEYWARD.example.org.:9090", "a.corp.example", "a.b.corp.example:80", own, own + ":9090",
	} {
		if err := h.Check(host); err != nil {
			t.Errorf("%q is refused: %v", host, err)
		}
	}
	for _, host := range []string{
		"evil.example", "evil.example:9090", "evil.svc.example", "keyward.prod.svc.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evillocalhost.example",
		"x.keyward.example.org", "corp.example", "notcorp.example", "cluster.local.evil", "evil.example.:9090", "127.0.0.1:9090:1.evil", "1.2.3", "evil.example:",
	} {
		if err := h.Check(host); err == nil || !strings.Contains(err.Error(), "--allowed-hosts") {
			t.Errorf("%q: %v", host, err)
		}
	}
	if err := new(Hosts).Check("localhost:80"); err != nil {
		t.Error(err)
	}
}

func TestHostsRefuseFaults(t *testing.T) {
	_, err := NewHosts("a:80", "http://b", "*", "*x.org", "ok.example", "a.*.b", "")
	if err == nil || strings.Count(err.Error(), "want a name") != 6 {
		t.Errorf("error %v", err)
	}
}

func TestGuard(t *testing.T) {
	reasons := []string{}
	refuse := func(r string) { reasons = append(reasons, r) }
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	h := new(Hosts).Guard(ok, refuse, "/healthz")
	for target, want := range map[string]int{"http://evil.example/v1/self": 421, "http://evil.example/healthz": 200, "http://10.0.0.1/v1/self": 200, "http://evil.example/healthz/": 421} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if w.Code != want || want == 421 && !strings.Contains(w.Body.String(), "evil.example") {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	if len(reasons) != 2 || reasons[0] != WrongHost {
		t.Errorf("refusals %q", reasons)
	}
}

func TestSameSite(t *testing.T) {
	refused := 0
	h := SameSite(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(r string) {
		if r == CrossSite {
			refused++
		}
	})
	for _, tt := range []struct {
		method, site, origin string
		want                 int
	}{
		{"POST", "", "", 200}, // no browser
		{"POST", "same-origin", "http://keyward:8080", 200},
		{"POST", "none", "", 200}, // typed by a person
		{"POST", "", "http://keyward:8080", 200},
		{"POST", "cross-site", "", 403},
		{"GET", "cross-site", "", 403},
		{"POST", "same-site", "http://other:8080", 403},
		{"PUT", "", "https://evil.example", 403},
		{"POST", "", "http://keyward:81", 403},
		{"POST", "", "null", 403},
	} {
		r := httptest.NewRequest(tt.method, "http://keyward:8080/json", strings.NewReader("{}"))
		for k, v := range map[string]string{"Sec-Fetch-Site": tt.site, "Origin": tt.origin} {
			if v != "" {
				r.Header.Set(k, v)
			}
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != tt.want {
			t.Errorf("%+v: %d %s", tt, w.Code, w.Body)
		}
	}
	if refused != 6 {
		t.Errorf("%d refusals counted", refused)
	}
}
