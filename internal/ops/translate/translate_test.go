package translate

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
)

var update = flag.Bool("update", false, "write the expected output to testdata")

// translateFile translates a file of testdata.
func translateFile(t *testing.T, name string, o Options) *GatewayRules {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return Translate([]config.File{{Name: name, Content: content}}, o)
}

// text renders all that Translate returns.
func (g *GatewayRules) text() string {
	var b strings.Builder
	for _, f := range g.Files {
		b.WriteString("---\n" + f.YAML)
	}
	b.WriteString("--- findings\n")
	for _, d := range g.Findings {
		fmt.Fprintf(&b, "%s: %s\n", d.Kind, d.String())
		if d.Hint != "" {
			fmt.Fprintf(&b, "    %s\n", d.Hint)
		}
	}
	return b.String()
}

// TestTranslate compares the rules and findings of each file with those that were checked against the definitions and
// the code of the gateways.
func TestTranslate(t *testing.T) {
	limits := map[string]Amount{"remote_address": {100, "minute"}, "x-user-id": {5, "second"}, "everything": {}}
	for _, row := range []struct {
		name, out string
		options   Options
	}{
		{"envoy-gateway.yaml", "envoy-gateway.txt", Options{Actions: true}},
		{"contour.yaml", "contour.txt", Options{Actions: true}},
		{"contour.yaml", "contour.limits.txt", Options{Domain: "mine", Limits: map[string]Amount{"": {1, "hour"}, "api_key": {7, "day"}}}},
		{"kuadrant.yaml", "kuadrant.txt", Options{Actions: true, Reserve: 1000}},
		{"attach.yaml", "attach.txt", Options{}},
		{"solo.yaml", "solo.txt", Options{}},
		{"local.yaml", "local.txt", Options{}},
		{"local.yaml", "local.envoys.txt", Options{Envoys: 3, Actions: true}},
		{"kgateway.yaml", "kgateway.txt", Options{Actions: true, Limits: limits}},
	} {
		g := translateFile(t, row.name, row.options)
		file := filepath.Join("testdata", row.out)
		if *update {
			if err := os.WriteFile(file, []byte(g.text()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || g.text() != string(want) {
			t.Errorf("%s differs (go test ./internal/ops/translate -update): %v\n%s", file, err, g.text())
		}
		loads(t, row.out, g)
	}
}

// loads requires that the rules of all domains load together.
func loads(t *testing.T, name string, g *GatewayRules) {
	t.Helper()
	var files []config.File
	for _, f := range g.Files {
		files = append(files, config.File{Name: f.Domain, Content: []byte(f.YAML)})
	}
	for _, fault := range config.Check(files, config.Options{}).Faults {
		t.Errorf("%s: the rules do not load: %s", name, fault.String())
	}
}

// TestKuadrantNames compares the names of limits with those in the tests of Kuadrant's operator.
func TestKuadrantNames(t *testing.T) {
	o := &object{namespace: "testNS", name: "rlpA"}
	if got := kuadrantID(&kuadrantPolicy{object: o}, ""); got != "limit.__6d5e49dc" {
		t.Error(got)
	}
	if got := kuadrantID(&kuadrantPolicy{object: o, token: true}, "my limit-ä.0"); !strings.HasPrefix(got, "tokenlimit.my_limit_ä_0__") {
		t.Error(got)
	}
}

// TestDisjoint lists predicates that exclude each other, and some that may hold together.
func TestDisjoint(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want bool
	}{
		{"request.method == 'GET'", "request.method == \"POST\"", true},
		{"request.method == 'GET' && x.y == 'a'", "request.path.startsWith('&&') && request.method == 'PUT'", true},
		{"request.method == 'GET'", "request.method == 'GET'", false},
		{"request.method == 'GET' || x == 'a'", "request.method == 'PUT'", false},
		{"x ? a == 'b' : c == 'd' && e == 'f'", "e == 'g'", false},
		{"!(a == 'b' && e == 'f')", "e == 'g'", false},
		{"list.exists(g, true && e == 'f' && true)", "e == 'g'", false},
		{"e != 'f'", "e == 'g'", false},
		{"", "e == 'g'", false},
		{"a == 'x\\' && e == \\'f'", "e == 'g'", false},
	} {
		if got := disjoint([]string{row.a}, []string{row.b}); got != row.want {
			t.Errorf("%s and %s: %v", row.a, row.b, got)
		}
	}
}

// TestWindows lists durations and what they become.
func TestWindows(t *testing.T) {
	for text, want := range map[string]string{
		"1s": "second", "60s": "minute", "1h": "hour", "24h": "day", "168h": "week", "720h": "month", "8760h": "year",
		"30s": "second 30s", "90s": "minute 1m30s", "36h": "day 36h", "1h1s": "hour 1h0m1s", "500ms": "second 500ms", "2h30m": "hour 2h30m",
	} {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		l := windowed(5, d)
		got := l.unit
		for _, p := range l.extra {
			got += " " + p.value
		}
		if got != want || l.requests != 5 {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestMergedPolicies lists policies of a route, that of its Gateway, and the amounts of the rules that apply, in their
// order.
func TestMergedPolicies(t *testing.T) {
	const global, local = "{global: {rules: [{limit: {requests: %d, unit: Hour}}]}}", "{local: {rules: [{limit: {requests: %d, unit: Hour}}]}}"
	const bad = "{global: {rules: [{limit: {requests: %d, unit: Eon}}]}}"
	for _, row := range []struct{ merge, own, above, want string }{
		{"", global, global, "1"},
		{"", local, global, ""},
		{"", "", global, "2"},
		{"", "{}", global, ""},
		{"StrategicMerge", global, global, "1 2"},
		{"StrategicMerge", local, global, "2"},
		{"StrategicMerge", "{}", global, "2"},
		{"StrategicMerge", bad, global, ""},
		{"StrategicMerge", global, bad, "1"},
		{"JSONMerge", global, global, "1"},
		{"JSONMerge", local, global, "2"},
		{"JSONMerge", global, local, "1"},
	} {
		text := "kind: Gateway\napiVersion: gateway.networking.k8s.io/v1\nmetadata: {name: g}\nspec: {listeners: [{name: l, protocol: HTTP}]}\n---\n" +
			"kind: HTTPRoute\napiVersion: gateway.networking.k8s.io/v1\nmetadata: {name: r}\nspec: {parentRefs: [{name: g}], rules: [{}]}\n"
		policy := func(kind, target, merge, limit string, n int) {
			if limit == "" {
				return
			}
			if strings.Contains(limit, "%d") {
				limit = fmt.Sprintf(limit, n)
			}
			if merge != "" {
				merge = "mergeType: " + merge + ", "
			}
			text += fmt.Sprintf("---\nkind: BackendTrafficPolicy\napiVersion: gateway.envoyproxy.io/v1alpha1\nmetadata: {name: %s}\nspec: {%stargetRefs: [{kind: %s, name: %s}], rateLimit: %s}\n",
				target, merge, kind, target, limit)
		}
		policy("HTTPRoute", "r", row.merge, row.own, 1)
		policy("Gateway", "g", "", row.above, 2)
		g := Translate([]config.File{{Name: "f.yaml", Content: []byte(text)}}, Options{})
		var got []string
		for _, f := range g.Files {
			for _, m := range regexp.MustCompile(`requests_per_unit: (\d+)`).FindAllStringSubmatch(f.YAML, -1) {
				got = append(got, m[1])
			}
		}
		if strings.Join(got, " ") != row.want {
			t.Errorf("%+v: %v\n%s", row, got, g.text())
		}
	}
}
