package admin

import (
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/browser"
)

func pageServer(t *testing.T, o Options) *httptest.Server {
	t.Helper()
	o.Gatherer = prometheus.NewRegistry()
	o.Cluster = func() api.ClusterStatus { return api.ClusterStatus{} }
	o.Ready = func() error { return nil }
	srv := httptest.NewServer(Handler(o))
	t.Cleanup(srv.Close)
	return srv
}

// ask follows no redirects.
func ask(t *testing.T, url, accept string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func TestFrontSendsBrowsersToThePage(t *testing.T) {
	srv := pageServer(t, Options{})
	if res, _ := ask(t, srv.URL+"/", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"); res.StatusCode != http.StatusFound || res.Header.Get("Location") != "/ui/" {
		t.Errorf("a browser gets %s %v", res.Status, res.Header)
	}
	if res, body := ask(t, srv.URL+"/", "*/*"); res.StatusCode != http.StatusOK || !strings.Contains(body, "/v1/timeline") || !strings.Contains(body, "/metrics") {
		t.Errorf("curl gets %s %s", res.Status, body)
	}
}

// Every asset is served with its content type and the page's policy.
func TestAssets(t *testing.T) {
	srv := pageServer(t, Options{})
	types := map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
	files, err := fs.ReadDir(assets, "page")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := f.Name()
		if name == "index.html" {
			name = "" // its own name is redirected to the folder
		}
		res, body := ask(t, srv.URL+"/ui/"+name, "*/*")
		if res.StatusCode != http.StatusOK || body == "" || !strings.HasPrefix(res.Header.Get("Content-Type"), types[path.Ext(f.Name())]) {
			t.Errorf("%s: %s %v", f.Name(), res.Status, res.Header)
		}
		if p := res.Header.Get("Content-Security-Policy"); p != pagePolicy {
			t.Errorf("%s has the policy %q", f.Name(), p)
		}
	}
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	srv := pageServer(t, Options{Timeline: func() []api.TimelineEvent { return []api.TimelineEvent{{Kind: api.HotEvent, Text: "<script>\xff"}} }})
	for _, path := range []string{"/", "/ui/", "/cluster", "/v1/timeline", "/v1/nothing", "/metrics", "/healthz"} {
		res, _ := ask(t, srv.URL+path, "*/*")
		for header, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"} {
			if got := res.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q", path, header, got)
			}
		}
		if p := res.Header.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || !strings.Contains(p, "frame-ancestors 'none'") || strings.Contains(p, "unsafe") {
			t.Errorf("%s has the policy %q", path, p)
		}
	}
	if _, body := ask(t, srv.URL+"/v1/timeline", "*/*"); !strings.Contains(body, `"text": "\u003cscript\u003e\ufffd"`) {
		t.Errorf("hostile text: %s", body)
	}
}

// The page contains no inline code and no foreign hosts, which its policy forbids.
func TestAssetsAreSelfContained(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]|\binnerHTML\b|\bouterHTML\b|insertAdjacentHTML|document\.write|\beval\(|new Function|\son[a-z]+=|style="`)
	err := fs.WalkDir(assets, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(assets, name)
		for i, line := range strings.Split(string(b), "\n") {
			// Links that a person may follow, and the names of XML's own spaces, load nothing.
			line = strings.NewReplacer("http://www.w3.org/2000/svg", "", `href="https://github.com/keyward/keyward`, "").Replace(line)
			if found := foreign.FindString(line); found != "" {
				t.Errorf("%s:%d: %q", name, i+1, found)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A browser that uses another site's host name is refused. Probes and Prometheus, which use an address or a name of
// the cluster, are answered.
func TestForeignHosts(t *testing.T) {
	names, err := browser.NewHosts("keyward.example.org")
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	srv := httptest.NewServer(Handler(Options{
		Gatherer: prometheus.NewRegistry(), Cluster: func() api.ClusterStatus { return api.ClusterStatus{} }, Self: func() api.Self { return api.Self{} }, Ready: func() error { return nil },
		Hosts: names, Refuse: func(r string) { refused = append(refused, r) },
	}))
	defer srv.Close()
	for _, path := range []string{"/", "/ui/", "/metrics", "/cluster", "/v1/self", "/healthz", "/readyz"} {
		for _, host := range []string{"evil.example", "127.0.0.1", "localhost:9090", "keyward.prod.svc.cluster.local", "keyward-0:9090", "keyward.example.org"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			want := http.StatusOK
			if host == "evil.example" && path != "/healthz" && path != "/readyz" {
				want = http.StatusMisdirectedRequest
			}
			if res.StatusCode != want || want != 200 && !strings.Contains(string(body), "--allowed-hosts") {
				t.Errorf("%s of %s: %d %s", path, host, res.StatusCode, body)
			}
		}
	}
	if len(refused) != 5 || refused[0] != browser.WrongHost {
		t.Errorf("refusals %q", refused)
	}
}
