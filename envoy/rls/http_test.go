package rls

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/keyward/keyward/internal/connguard"
)

func get(t testing.TB, a net.Addr, path string) (int, string) {
	t.Helper()
	return do(t, http.MethodGet, a, path, "")
}

func do(t testing.TB, method string, a net.Addr, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return roundTrip(t, req)
}

func roundTrip(t testing.TB, req *http.Request) (int, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestJSON(t *testing.T) {
	r := newRig(t, basic)
	a := r.start(t, inlineKind, NewHealthServer()).Addrs[1]
	const one = `{"domain":"basic","descriptors":[{"entries":[{"key":"one","value":"v"}]}]}`
	for _, tt := range []struct {
		name, method, body string
		code               int
		want               string // brief of the response, or the body
	}{
		{"first", "POST", one, 200, "OK OK:0"},
		{"second", "PUT", one, 429, "OVER OVER:0"},
		{"snake case", "POST", `{"domain":"basic","hits_addend":3,"descriptors":[{"entries":[{"key":"key1"}]}]}`, 200, "OK OK:47"},
		{"camel case", "POST", `{"domain":"basic","hitsAddend":3,"descriptors":[{"entries":[{"key":"key1"}]}]}`, 200, "OK OK:44"},
		{"own addend", "POST", `{"domain":"basic","descriptors":[{"hitsAddend":"0","entries":[{"key":"key1"}]}]}`, 200, "OK OK:44"},
		{"unlimited", "POST", `{"domain":"basic","descriptors":[{"entries":[{"key":"free"}]}]}`, 200, "OK OK"},
		{"empty", "GET", "", 400, "Bad Request\n"},
		{"malformed", "POST", "}", 400, "Bad Request\n"},
		{"unknown field", "POST", `{"domain":"basic","nonsense":1}`, 400, "Bad Request\n"},
		{"no domain", "POST", `{"descriptors":[{"entries":[{"key":"one"}]}]}`, 400, "Bad Request\n"},
		{"no descriptors", "POST", `{"domain":"basic"}`, 400, "Bad Request\n"},
		{"bytes that are no UTF-8", "POST", strings.Replace(one, `"v"`, "\"\xff\xfe\"", 1), 200, "OK OK:0"},
		{"the same again", "POST", strings.Replace(one, `"v"`, "\"\xff\xfe\"", 1), 429, "OVER OVER:0"},
		{"other bytes", "POST", strings.Replace(one, `"v"`, "\"\xff\xfd\"", 1), 200, "OK OK:0"},
		{"giant", "POST", strings.Repeat(" ", 17<<20) + one, 429, "OVER"},
	} {
		code, body := do(t, tt.method, a, "/json", tt.body)
		got := body
		if code != 400 {
			var resp pb.RateLimitResponse
			if err := protojson.Unmarshal([]byte(body), &resp); err != nil {
				t.Errorf("%s: %v in %s", tt.name, err, body)
			}
			got = brief(&resp)
		}
		if code != tt.code || got != tt.want {
			t.Errorf("%s: %d %s, want %d %s", tt.name, code, got, tt.code, tt.want)
		}
	}
}

// A client's odd bytes are one count, whichever listener it uses.
func TestJSONOpaque(t *testing.T) {
	r := newRig(t, basic)
	a := r.start(t, inlineKind, NewHealthServer()).Addrs[1]
	if code, body := do(t, "POST", a, "/json", "{\"domain\":\"basic\",\"descriptors\":[{\"entries\":[{\"key\":\"one\",\"value\":\"\xff\xfe\"}]}]}"); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	message := strings.Replace(string(encodeRequest(t, request("basic", descriptor("one", "12")))), "12", "\xff\xfe", 1)
	resp, err := r.tryWire(t, []byte(message))
	if err != nil {
		t.Fatal(err)
	}
	if got := brief(resp); got != "OVER OVER:0" {
		t.Errorf("the second hit: %s", got)
	}
}

func TestDebug(t *testing.T) {
	r := newRig(t, basic)
	a := r.start(t, inlineKind, NewHealthServer()).Addrs[2]
	for path, want := range map[string]string{
		"/":                             "/rlconfig: print out",
		"/rlconfig":                     "basic.shadow: unit=MINUTE requests_per_unit=1, shadow_mode: true, quota_mode: false\n",
		"/stats":                        "memstats: {",
		"/debug/pprof/":                 "goroutine",
		"/debug/pprof/cmdline":          "rls.test",
		"/debug/pprof/heap?debug=1":     "heap profile",
		"/debug/pprof/trace?seconds=.1": "go ",
	} {
		if code, body := get(t, a, path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d without %q: %.200s", path, code, want, body)
		}
	}
	if code, body := get(t, newRig(t, "").start(t, inlineKind, NewHealthServer()).Addrs[2], "/rlconfig"); code != 200 || body != "" {
		t.Errorf("/rlconfig without rules: %d %q", code, body)
	}
}

// A JSON body takes little more memory than its text: a body that is too long or has too many objects is over its
// limit.
func TestJSONBounds(t *testing.T) {
	for text, want := range map[string]int{
		`{"a":"{{{{","b":"\"{","c":[{},{}]}`: 3, `{`: 1, `"`: 0, `"\`: 0, `{"a":"\\"}{`: 2, ``: 0,
	} {
		if n := objects([]byte(text)); n != want {
			t.Errorf("%s: %d objects", text, n)
		}
	}
	many := `{"domain":"d","descriptors":[` + strings.Repeat("{},", 1_000_000) + `{}]}`
	long := `{"domain":"d","descriptors":[]` + strings.Repeat(" ", connguard.MaxBody) + `}`
	usual := `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"` + strings.Repeat("v", 60_000) + `"}]}]}`
	for _, tt := range []struct {
		body string
		fits bool
	}{{many, false}, {long, false}, {usual, true}, {long[:connguard.MaxBody], true}} {
		b, fits, err := readJSON(strings.NewReader(tt.body))
		if err != nil || fits != tt.fits || len(b) > connguard.MaxBody {
			t.Errorf("%d bytes: fits %v, %d kept, %v", len(tt.body), fits, len(b), err)
		}
	}
}

// A client of the debug listener that does not read is cut off after its time.
func TestDebugIsTimed(t *testing.T) {
	for path, want := range map[string]time.Duration{
		"/rlconfig": writeTime, "/debug/pprof/trace?seconds=5": writeTime + 5*time.Second, "/debug/pprof/profile": writeTime + 30*time.Second,
		"/debug/pprof/profile?seconds=NaN": writeTime + 30*time.Second, "/stats?seconds=1e300": writeTime + time.Hour,
	} {
		w := &timedWriter{ResponseRecorder: httptest.NewRecorder()}
		withWriteDeadline(func(http.ResponseWriter, *http.Request) {})(w, httptest.NewRequest(http.MethodGet, path, nil))
		if got := time.Until(w.deadline); got > want || got < want-5*time.Second {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// timedWriter records the write deadline.
type timedWriter struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (w *timedWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}
