package snippet

import "testing"

// TestHotFilters: filters from xDS are refused where they cannot work, and their limitations are warnings.
func TestHotFilters(t *testing.T) {
	header := map[string]string{"api_key": "header:x-api-key"}
	both := map[string]string{"api_key": "header:x-api-key", "session": "header:X-Session", "path": "header::path"}
	for name, c := range map[string]hotCase{
		"the usual":          {Options{From: header}, "", "", "%REQ(x-keyward-sub?x-api-key)%"},
		"another header":     {Options{From: map[string]string{"api_key": "header:X-User"}}, "", "--route-header x-user", "%REQ(x-keyward-sub?x-user)%"},
		"an address":         {Options{Rules: load(t, other)}, "", "", "- name: keyward-spread-address"},
		"one of two headers": {Options{Rules: load(t, rich), From: both, Key: "session"}, "", "calls are placed only by x-session", "%REQ(x-keyward-sub?x-session)%"},
		"one of two domains": {Options{Rules: load(t, simple, other), From: header}, "", "domain it's: other: hot keys are capped but not spread", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"},
		"no header":          {Options{Rules: load(t, simple), From: map[string]string{"api_key": "query:key"}}, "", "capped but not spread", "- name: keyward-caps/app"},
		"no server":          {Options{From: header, Members: []StaticMember{{"a", "10.0.0.1:1"}}, XDS: "-"}, "an xDS server", "", ""},
		"with hot routes":    {Options{From: header, HotRoutes: true}, "choose one", "", ""},
		"plain":              {Options{Shape: Plain, From: header}, "", "", "- name: keyward-caps/app"},
		"routes":             {Options{Shape: Routes, From: header}, "", "", "terminal: true"},
		"a single route":     {Options{Shape: Routes, Part: partFilter, From: header}, "cannot contain filters", "", ""},
		"only filters":       {Options{Part: partFilter, From: header, XDS: "-"}, "", "", "# rate_limits:"},
	} {
		c.o.HotECDS = true
		c.check(t, name)
	}
}
