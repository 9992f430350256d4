package replay

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
)

func load(t testing.TB, yaml string) *config.Rules {
	t.Helper()
	rules, err := config.Load([]config.File{{Name: "rules.yaml", Content: []byte(yaml)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func from(t testing.TB, pairs ...string) map[string]Source {
	t.Helper()
	m := map[string]Source{}
	for i := 0; i < len(pairs); i += 2 {
		s, err := ParseSource(pairs[i+1])
		if err != nil {
			t.Fatal(err)
		}
		m[pairs[i]] = s
	}
	return m
}

func side(t testing.TB, yaml string, a Actions) Side {
	t.Helper()
	rules := load(t, yaml)
	qs, warnings := a.Templates(rules)
	if len(warnings) > 0 {
		t.Fatal(warnings)
	}
	return Side{Name: "rules", Rules: rules, Templates: qs}
}

func read(t testing.TB, text string, qs []DescriptorTemplate, r LogReader) *Log {
	t.Helper()
	l, err := r.Read([]io.Reader{strings.NewReader(text)}, qs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var start = time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)

// hit is one line of a generated log.
type hit struct {
	at  time.Duration // after start
	key string
}

func lines(hits []hit) string {
	var b strings.Builder
	for _, h := range hits {
		fmt.Fprintf(&b, `{"start_time":%q,"x_api_key":%q,"response_code":200,"response_flags":"-"}`+"\n", start.Add(h.at).Format(time.RFC3339Nano), h.key)
	}
	return b.String()
}

// randomHits returns some minutes of traffic for a few keys, in order.
func randomHits(seed uint64, n int) []hit {
	r := rand.New(rand.NewPCG(seed, 1))
	hits := make([]hit, n)
	for i := range hits {
		hits[i] = hit{time.Duration(r.Int64N(int64(7 * time.Minute))), fmt.Sprintf("k%d", r.IntN(4))}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return int(a.at - b.at) })
	return hits
}

const perMinute = `domain: edge
descriptors:
  - key: api_key
    rate_limit: {unit: minute, requests_per_unit: 20}
`

// The denied requests are those that a list of all hits yields, in any order of the lines: Envoy writes a line at the
// end of a request.
func TestDeniedRequestsMatchAListOfHits(t *testing.T) {
	hits := randomHits(1, 1000)
	var want []bool
	counts := map[string]int{}
	total, perKey := 0, map[string]int{}
	for _, h := range hits {
		window := fmt.Sprint(h.key, start.Add(h.at).Unix()/60)
		counts[window]++
		over := counts[window] > 20
		want = append(want, over)
		if over {
			total++
			perKey[h.key]++
		}
	}
	if total == 0 || total == len(hits) {
		t.Fatalf("%d of %d refused: the test says nothing", total, len(hits))
	}
	mixed := slices.Clone(hits)
	rand.New(rand.NewPCG(2, 2)).Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	s := side(t, perMinute, Actions{From: from(t, "api_key", "header:X-API-Key")})
	log := read(t, lines(mixed), s.Templates, LogReader{})
	rep := Run(log, Options{New: s, Top: 10})
	if rep.New.Refused != total || rep.New.PerRule[0].Over != total || rep.New.PerRule[0].Asked != len(hits) || rep.New.PerRule[0].Keys != len(perKey) {
		t.Errorf("%+v, want %d refused", rep.New, total)
	}
	for _, k := range rep.New.TopKeys {
		if key := strings.TrimPrefix(k.Key, "api_key="); perKey[key] != k.Over {
			t.Errorf("%s: %d over, want %d", k.Key, k.Over, perKey[key])
		}
	}
	refused := 0
	for i, b := range rep.Buckets {
		inMinute := 0
		for j, h := range hits {
			if start.Add(h.at).Truncate(time.Minute).Equal(b.Time) && want[j] {
				inMinute++
			}
		}
		if b.New != inMinute {
			t.Errorf("minute %d: %d refused, want %d", i, b.New, inMinute)
		}
		refused += b.New
	}
	if refused != total {
		t.Errorf("the minutes sum to %d, want %d", refused, total)
	}
}

const tiers = `domain: edge
descriptors:
  - key: plan
    value: free
    descriptors:
      - key: api_key
        rate_limit: {unit: minute, requests_per_unit: 1, name: tier}
  - key: plan
    value: paid
    descriptors:
      - key: api_key
        rate_limit: {unlimited: true, replaces: [{name: all}]}
  - key: api_key
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 3, name: all}
`

// Descriptors with missing values are omitted, shadow rules deny no request, and replaced rules do not count.
func TestDescriptorsAreThoseOfEnvoy(t *testing.T) {
	s := side(t, tiers, Actions{From: from(t, "api_key", "query:key", "plan", "field:auth.plan")})
	var b strings.Builder
	line := func(plan, path, address string) {
		fmt.Fprintf(&b, `{"start_time":"2026-11-01T10:00:00Z","path":%q,"downstream_remote_address":%q,"auth":{"plan":%s}}`+"\n", path, address, plan)
	}
	for range 5 {
		line(`"free"`, "/a?x=1&key=alice%21", "10.0.0.1:999")
	}
	for range 9 {
		line(`"paid"`, "/a?key=bob", "10.0.0.2:999")
	}
	for range 4 {
		line("null", "/a?key=", "10.0.0.3:999")
	}
	rep := Run(read(t, b.String(), s.Templates, LogReader{}), Options{New: s, Top: 10})
	got := fmt.Sprint(rep.New.Refused)
	for _, r := range rep.New.PerRule {
		got += fmt.Sprintf("; %s %d/%d", r.Rule, r.Over, r.Asked)
	}
	// free: 4 of 5 over their tier; api_key, in shadow, 3 of alice and 7 of bob; the address: 2 of 5, none of bob's, 1
	// of 4.
	if want := "5; edge.plan_free.api_key 4/5; edge.api_key 10/14; edge.remote_address 3/9"; got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if k := rep.New.TopKeys[0]; k.Key != "api_key=bob" || k.Over != 7 {
		t.Errorf("%+v", k)
	}
}

func TestOldAgainstNew(t *testing.T) {
	a := Actions{From: from(t, "api_key", "header:x-api-key")}
	fewer, more := side(t, strings.Replace(perMinute, "20", "10", 1), a), side(t, perMinute, a)
	hits := randomHits(5, 600)
	rep := Run(read(t, lines(hits), fewer.Templates, LogReader{}), Options{New: fewer, Old: &more, Top: 10})
	if rep.OnlyOld != 0 || rep.OnlyNew == 0 || rep.New.Refused-rep.Old.Refused != rep.OnlyNew {
		t.Errorf("new refuses %d, old %d; %d by new only, %d by old only", rep.New.Refused, rep.Old.Refused, rep.OnlyNew, rep.OnlyOld)
	}
}

const overTwo = `domain: edge
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: remote_address
    rate_limit: {unit: hour, requests_per_unit: 2}
`

// With stop, a descriptor over its limit prevents the charges of the others in its call.
func TestStopWhenOver(t *testing.T) {
	s := side(t, overTwo, Actions{From: from(t, "api_key", "header:x-api-key")})
	var b strings.Builder
	for i := range 6 {
		address := "10.0.0.1"
		if i > 3 {
			address = "10.0.0.2"
		}
		fmt.Fprintf(&b, `{"start_time":"2026-11-01T10:00:0%dZ","x-api-key":"alice","remote_address":%q}`+"\n", i, address)
	}
	log := read(t, b.String(), s.Templates, LogReader{})
	refusals := func(stop bool) []bool {
		s.Stop = stop
		r := newRun(log, s)
		r.replay(nil)
		return r.refused
	}
	if got, want := refusals(true), []bool{false, false, true, true, false, false}; !slices.Equal(got, want) {
		t.Errorf("with stop %v, want %v", got, want)
	}
	if got, want := refusals(false), []bool{false, false, true, true, false, true}; !slices.Equal(got, want) {
		t.Errorf("without %v, want %v", got, want)
	}
}

func TestTextFormat(t *testing.T) {
	const log = `[2016-04-15T20:17:00.310Z] "POST /api/v1/locations?user=ann HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0" "locations" "tcp://10.0.2.1:80"
[2016-04-15T20:17:01.310Z] "POST /api/v1/locations?user=ann HTTP/2" 429 RL 154 0 226 - "-" "nsq2http" "cc21d9b0" "locations" "-"
not a line
`
	yaml := "domain: edge\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 1}\n  - key: agent\n    rate_limit: {unit: hour, requests_per_unit: 9}\n"
	s := side(t, yaml, Actions{From: from(t, "user", "query:user", "agent", "header:user-agent")})
	l := read(t, log, s.Templates, LogReader{})
	rep := Run(l, Options{New: s, Top: 10})
	if rep.Requests != 2 || rep.Skipped != 1 || rep.RefusedByLog != 1 || rep.New.Refused != 1 || rep.New.PerRule[1].Asked != 2 {
		t.Errorf("%+v", rep)
	}
	l = read(t, "1446 ann 429\n1446 ann 200\n", s.Templates, LogReader{Format: "%START_TIME(%s)% %REQ(USER-AGENT?X-AGENT):20% %RESPONSE_CODE%"})
	if l.Requests() != 2 || l.Refused != 1 || !slices.Contains(l.texts, "ann") {
		t.Errorf("%+v", l)
	}
	for _, bad := range []string{"no operator", "%REQ(A)%%REQ(B)%", "%REQ(A"} {
		if _, err := parseFormat(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestTimes(t *testing.T) {
	want := start.Add(250 * time.Millisecond).UnixNano()
	for _, text := range []string{"2026-11-01T10:00:00.25Z", "2026-11-01T11:00:00.250+01:00", "1793527200.25", "1793527200250", "1793527200250000", "1793527200250000000"} {
		if got, err := parseTime([]byte(text)); err != nil || max(got-want, want-got) > 1000 {
			t.Errorf("%s: %d %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "soon", "-5", "NaN", "+Inf"} {
		if got, err := parseTime([]byte(text)); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

// A 429 of the application is not a rate limit. Without flags the status counts.
func TestRefusedByTheLog(t *testing.T) {
	for line, want := range map[string]int{
		`{"start_time":"2026-11-01T10:00:00Z","response_code":429,"response_flags":"RL"}`:      1,
		`{"start_time":"2026-11-01T10:00:00Z","response_code":429,"response_flags":"DC,RL"}`:   1,
		`{"start_time":"2026-11-01T10:00:00Z","response_code":429,"response_flags":"-"}`:       0,
		`{"start_time":"2026-11-01T10:00:00Z","response_code":"429"}`:                          1,
		`{"start_time":"2026-11-01T10:00:00Z","response_code":503,"response_flags":"UF,URX"}`:  0,
		`{"start_time":"2026-11-01T10:00:00Z","Response_Code":200,"response_flags":"RLSE,NR"}`: 0,
	} {
		if l := read(t, line, nil, LogReader{}); l.Refused != want {
			t.Errorf("%s: %d", line, l.Refused)
		}
	}
}

func TestSources(t *testing.T) {
	for text, want := range map[string]string{
		"masked_remote_address:24/64": "10.1.2.0/24", "remote_address": "10.1.2.3", "value:x": "x", "query:q": "a b",
	} {
		s := from(t, "k", text)["k"]
		in := "10.1.2.3:80"
		if s.kind == fromQuery {
			in = "/?p=1&q=a+b"
		}
		if got, ok := s.value(in); !ok || got != want {
			t.Errorf("%s: %q %v", text, got, ok)
		}
	}
	for _, bad := range []string{"header:", "metadata:a:b", "masked_remote_address:33", "nothing", ""} {
		if _, err := ParseSource(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// A reader finds a header under every name in the formats of Envoy, Istio and Envoy Gateway.
func TestHeaderNames(t *testing.T) {
	for header, fields := range map[string][]string{
		"user-agent": {`"user-agent":"v"`, `"user_agent":"v"`, `"User-Agent":"v"`, `"request_headers":{"user-agent":"v"}`},
		":authority": {`":authority":"v"`, `"authority":"v"`, `"host":"v"`},
		":path":      {`"path":"v"`, `"path":"w","x-envoy-origin-path":"v"`, `"x-envoy-original-path":"v",":path":"w"`},
		":method":    {`"method":"v"`},
	} {
		for _, f := range fields {
			s := from(t, "k", "header:"+header)["k"]
			qs := []DescriptorTemplate{{Domain: "d", keys: []string{"k"}, sources: []Source{s}}}
			l := read(t, `{"start_time":"2026-11-01T10:00:00Z",`+f+`}`, qs, LogReader{})
			if got := l.texts[l.values[0]]; got != "v" {
				t.Errorf("%s in %s: %q", header, f, got)
			}
		}
	}
}

// A million requests take a few seconds. Use -bench Replay -benchtime 1000000x for the time per request.
func BenchmarkReplay(b *testing.B) {
	s := side(b, perMinute, Actions{From: from(b, "api_key", "header:x-api-key")})
	var line bytes.Buffer
	for i := range b.N {
		fmt.Fprintf(&line, `{"start_time":%q,"method":"GET","x-envoy-origin-path":"/api/v1/items/%d?page=2","protocol":"HTTP/1.1","response_code":200,"response_flags":"-","bytes_received":0,"bytes_sent":512,"duration":4,"x-forwarded-for":"10.0.0.7","user-agent":"curl/8.5.0","x-request-id":"0a1b2c3d-%d","x-api-key":"key-%d",":authority":"api.example.org","upstream_host":"10.1.2.3:8080"}`+"\n",
			start.Add(time.Duration(i)*time.Millisecond).Format("2006-01-02T15:04:05.000Z"), i, i, i%5000)
	}
	b.SetBytes(int64(line.Len() / b.N))
	b.ReportAllocs()
	b.ResetTimer()
	log, err := LogReader{}.Read([]io.Reader{&line}, s.Templates, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "read-ns/op")
	Run(log, Options{New: s, Top: 10})
}
