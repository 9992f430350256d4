package snippet

import (
	"strings"
	"testing"
)

// TestReserveFaults: what cannot hold hits is refused before anything is printed, and what settles nothing is named.
func TestReserveFaults(t *testing.T) {
	from := map[string]string{"tenant": "header:x-tenant", "streams": "header:x-tenant", "api_key": "header:x-api-key"}
	both := `domain: d
descriptors:
- key: tenant
  rate_limit: {unit: hour, requests_per_unit: 100}
  metadata: {keyward: {reserve: 1}}
- key: tenant
  value: x
  rate_limit: {unit: hour, requests_per_unit: 100}
  metadata: {keyward: {algorithm: in_flight, window: 1m}}
`
	for what, c := range map[string]struct {
		o    Options
		want string
	}{
		"an unknown source": {Options{Rules: load(t, tokens), Reserve: "anthropic"}, "want openai or metadata:NAMESPACE"},
		"no namespace":      {Options{Rules: load(t, tokens), Reserve: "metadata:"}, "want openai or metadata:NAMESPACE"},
		"a format":          {Options{Rules: load(t, tokens), Reserve: "metadata:a)%"}, "want openai or metadata:NAMESPACE"},
		"an edge":           {Options{Rules: load(t, tokens), Reserve: "openai", Shape: Routes, XDS: "127.0.0.1:1"}, "the Envoys of the pods hold hits"},
		"a gateway":         {Options{Rules: load(t, tokens), Reserve: "openai", Gateway: gatewayContour}, "contour generates the descriptors itself"},
		"hot filters":       {Options{Rules: load(t, tokens), Reserve: "openai", HotECDS: true, XDS: "127.0.0.1:1"}, "cannot hold hits"},
		"two kinds":         {Options{Rules: load(t, both), Reserve: "openai"}, "some of them count requests in flight"},
		"unsettled":         {Options{Rules: load(t, tokens)}, "warning: domain llm: nothing settles what llm.tenant, llm.tenant_large reserves"},
		"nothing reserved":  {Options{Rules: load(t, simple), Reserve: "openai"}, "warning: no rule has reserve"},
	} {
		c.o.From = from
		if c.o.Shape == "" && c.o.XDS == "" {
			c.o.Shape = Plain
		}
		_, warnings, err := Generate(c.o)
		got := "warning: " + strings.Join(warnings, "\nwarning: ")
		if err != nil {
			got += "\n" + err.Error()
		}
		if warned := strings.HasPrefix(c.want, "warning: "); !strings.Contains(got, c.want) || warned != (err == nil) {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

// TestReserveMarks: a rule with settle: addend takes a request with hits for a settlement unless it is marked.
func TestReserveMarks(t *testing.T) {
	rules := strings.Replace(tokens, "{reserve: 4096}", "{reserve: 4096, settle: addend, lapse: keep}", 1)
	text, _, err := Generate(Options{Shape: Plain, Rules: load(t, rules), From: map[string]string{"tenant": "header:x-tenant", "streams": "header:x-tenant"}, Reserve: "openai"})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "descriptor_value: reserve"); n != 1 {
		t.Errorf("%d marks in\n%s", n, text)
	}
}
