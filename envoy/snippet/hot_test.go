package snippet

import (
	"strings"
	"testing"
)

// TestHotRoutes: hot routes are refused where they cannot work, and their limitations are warnings.
func TestHotRoutes(t *testing.T) {
	header := map[string]string{"api_key": "header:x-api-key"}
	both := map[string]string{"api_key": "header:x-api-key", "session": "header:X-Session", "path": "header::path"}
	cases := map[string]hotCase{
		"the usual":          {Options{From: header}, "", "", "%REQ(x-keyward-sub?x-api-key)%"},
		"another header":     {Options{From: map[string]string{"api_key": "header:X-User"}}, "", "--route-header x-user", "%REQ(x-keyward-sub?x-user)%"},
		"one of two headers": {Options{Rules: load(t, rich), From: both, Key: "session"}, "", "calls are placed only by x-session", "%REQ(x-keyward-sub?x-session)%"},
		"one of two domains": {Options{Rules: load(t, simple, other), From: header}, "", "domain it's: other: hot routes have no effect", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"},
		"said by hand":       {Options{Rules: load(t, simple), From: header, RouteHeader: "X-Other"}, "no call is placed by one", "", ""},
		"no header":          {Options{Rules: load(t, other)}, "no call is placed by one", "", ""},
		"no server":          {Options{From: header, Members: []StaticMember{{"a", "10.0.0.1:1"}}, XDS: "-"}, "an xDS server", "", ""},
		"plain":              {Options{Shape: Plain, From: header}, "routed", "", ""},
		"plain, routed":      {Options{Shape: Plain, Routed: true, From: header}, "", "", "%REQ(x-keyward-sub?x-api-key)%"},
		"routes":             {Options{Shape: Routes, From: header}, "", "", "route_config_name: keyward-routes"},
		"routes by address":  {Options{Shape: Routes, Rules: load(t, other)}, "no call is placed by one", "", ""},
		"a single route":     {Options{Shape: Routes, Part: partFilter, From: header}, "no single route", "", ""},
		"a gateway":          {Options{Gateway: gatewayIstio, From: header}, "come from istio", "", ""},
		"only filters":       {Options{Part: partFilter, From: header, XDS: "-"}, "", "", "# rds:"},
	}
	for name, c := range cases {
		c.o.HotRoutes = true
		c.check(t, name)
	}
}

// hotCase is a configuration for hot keys, and what Generate returns for it.
type hotCase struct {
	o                    Options // XDS: - is none
	fault, warning, text string  // parts of them; no fault and no warning: none
}

func (c *hotCase) check(t *testing.T, name string) {
	t.Helper()
	o := c.o
	if o.Rules == nil {
		o.Rules = load(t, simple)
	}
	if o.XDS == "" {
		o.XDS = "127.0.0.1:18000"
	}
	o.XDS = strings.Trim(o.XDS, "-")
	text, warnings, err := Generate(o)
	if (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
		t.Errorf("%s: %v, want %q", name, err, c.fault)
	}
	if all := strings.Join(warnings, "\n"); c.fault == "" && !strings.Contains(all, c.warning) || c.warning == "" && all != "" && err == nil {
		t.Errorf("%s: warnings %q, want %q", name, all, c.warning)
	}
	if !strings.Contains(string(text), c.text) {
		t.Errorf("%s: no %s in\n%s", name, c.text, text)
	}
}
