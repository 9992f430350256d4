package app

import (
	"regexp"
	"strings"
	"testing"
)

// TestRefusalsAreLogged requires one line per second with the number of denials that were not logged, without values
// of callers.
func TestRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	p := launch(t, "a")
	eventually(t, "ready", p.ready)
	for range 5 {
		p.hit(t, "secret-of-alice", 2000)
	}
	eventually(t, "a line", func() bool { return strings.Contains(p.log.String(), `msg="over limit"`) })
	text := p.log.String()
	if n := strings.Count(text, `msg="over limit"`); n > 2 {
		t.Errorf("%d lines for five refusals within a second", n)
	}
	if !regexp.MustCompile(`msg="over limit" domain=d rule=d\.k limit=1000 key=[0-9a-f]{16} owner=a path=local authority=full not_logged=0`).MatchString(text) {
		t.Errorf("no such line in\n%s", text)
	}
	if strings.Contains(text, "alice") {
		t.Errorf("a caller's value is in the log:\n%s", text)
	}
}

// TestLeasesAreAudited requires that the owner writes the grants and reports of a rule with audit: true, with their
// sums, to the standard output by default.
func TestLeasesAreAudited(t *testing.T) {
	t.Parallel()
	all := trio(t)
	line := regexp.MustCompile(`\{"time":"\S+","member":"\S+","kind":"lease","domain":"d","key":"\S*lent\S*","digest":"[0-9a-f]{32}","peer":"\S+","hits":\d+,("used":\d+,)?"limit":100000\}`)
	eventually(t, "a record of a grant", func() bool {
		for _, p := range all {
			p.hitKey(t, "lent", "x", 1)
		}
		for _, p := range all {
			if line.MatchString(p.log.String()) {
				return true
			}
		}
		return false
	})
}

// TestGRPCServerIsDeprecated requires that both older names of the server answer calls, and that grpc logs a warning.
func TestGRPCServerIsDeprecated(t *testing.T) {
	t.Parallel()
	for args, warns := range map[string]bool{"--rls-server=grpc": true, "--rls-door=grpc": true, "--rls-door=lean": false} {
		p := launch(t, "a", args)
		eventually(t, "ready", p.ready)
		p.hit(t, "key", 1)
		if got := strings.Contains(p.log.String(), "--rls-server grpc is deprecated"); got != warns {
			t.Errorf("%s: a warning: %v", args, got)
		}
	}
}
