package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
)

// broken is a member that is set up wrong, and what everybody is to say of it.
type broken struct {
	name, what string
	ready      bool   // all the same
	cause      string // of keyward_off_ring; empty: it is on the ring, or its rules are at fault
	says       string // part of why it is not ready
	check      string // of the doctor's first finding
	finds      string // part of that
	alert      string
	metric     string // of the alert, above 0 at the member
	args       func(b *bench) []string
	mend       func(b *bench) []string // what is done about it; flags: it is restarted with them
}

// bench is where one broken member is set up.
type bench struct {
	t       *testing.T
	l       *lab.Lab
	dir     string
	sidecar *lab.Sidecar
}

// certificates puts a sidecar's certificate, made by o, into the member's folder.
func (b *bench) certificates(role string, own bool, o certs.DemoOptions) []string {
	b.t.Helper()
	from := b.t.TempDir()
	if !own {
		for _, ext := range []string{".crt", ".key"} {
			b.copy(b.l.CertFile("ca", ext), filepath.Join(from, "ca"+ext))
		}
		o.Renew = true
	}
	if err := certs.MakeDemo(from, o); err != nil {
		b.t.Fatal(err)
	}
	f := certs.DemoFiles(from, role)
	return b.install(f.Cert, f.Key, f.CA)
}

func (b *bench) install(cert, key, ca string) []string {
	b.copy(cert, filepath.Join(b.dir, "tls.crt"))
	b.copy(key, filepath.Join(b.dir, "tls.key"))
	b.copy(ca, filepath.Join(b.dir, "ca.crt"))
	return []string{"--tls-cert", filepath.Join(b.dir, "tls.crt"), "--tls-key", filepath.Join(b.dir, "tls.key"), "--tls-ca", filepath.Join(b.dir, "ca.crt")}
}

// good brings the certificate that members have.
func (b *bench) good() []string {
	b.install(b.l.CertFile("sidecar", ".crt"), b.l.CertFile("sidecar", ".key"), b.l.CertFile("ca", ".crt"))
	return nil
}

// copy replaces a file as tools that renew it do: aside, then renamed.
func (b *bench) copy(from, to string) {
	b.t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

const brokenRules = "domain: app\ndescriptors:\n- key: user\n  rate_limit: {unit: hour, requests_per_unit: 100}\n"

// brokenMembers are the ways to set a member up wrong.
func brokenMembers() []broken {
	key := func(b *bench) string { return filepath.Join(b.dir, "gossip.key") }
	return []broken{
		{
			name: "name-service", what: "`--join` has a name that does not resolve", cause: "lookup", says: "lookup keyward-typo.invalid", check: "off the ring", finds: "compare --join",
			alert: "KeywardOffRing", metric: "keyward_off_ring",
			args: func(*bench) []string { return []string{"--join", "dns+keyward-typo.invalid:7946"} },
			mend: func(b *bench) []string { return []string{"--join", b.l.Sidecars[0].Gossip} },
		},
		{
			name: "gossip-key", what: "a different gossip key", cause: "gossip", says: "--gossip-key-file", check: "off the ring", finds: "--gossip-key-file",
			alert: "KeywardOffRing", metric: "keyward_off_ring",
			args: func(b *bench) []string {
				if err := os.WriteFile(key(b), []byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n"), 0o600); err != nil {
					b.t.Fatal(err)
				}
				return []string{"--gossip-key-file", key(b)}
			},
			mend: func(b *bench) []string { b.copy(b.l.CertFile("gossip", ".key"), key(b)); return nil },
		},
		{
			name: "label", what: "a different `--cluster`", cause: "gossip", says: "--cluster", check: "off the ring", finds: "--cluster",
			alert: "KeywardOffRing", metric: "keyward_off_ring",
			args: func(*bench) []string { return []string{"--cluster", "other"} },
			mend: func(*bench) []string { return []string{"--cluster", "lab"} },
		},
		{
			name: "ca", what: "a certificate of another CA", cause: "streams", says: "unknown authority", check: "off the ring", finds: "has streams with 0 of",
			alert: "KeywardOffRing", metric: "keyward_off_ring",
			args: func(b *bench) []string { return b.certificates("sidecar", true, certs.DemoOptions{}) },
			mend: (*bench).good,
		},
		{
			name: "expired", what: "an expired certificate", cause: "streams", says: "expired", check: "off the ring", finds: "expired",
			alert: "KeywardOffRing", metric: "keyward_off_ring",
			args: func(b *bench) []string {
				long := func() time.Time { return time.Now().Add(-3 * time.Hour) }
				return b.certificates("sidecar", false, certs.DemoOptions{Lifetime: time.Hour, Now: long})
			},
			mend: (*bench).good,
		},
		{
			name: "cert-name", what: "an Envoy's certificate instead of a member's", cause: "streams", says: "has streams with 0 of", check: "off the ring", finds: "has streams with 0 of",
			alert: "KeywardOffRing", metric: "keyward_off_ring",
			args: func(b *bench) []string {
				return append(b.install(b.l.CertFile("envoy", ".crt"), b.l.CertFile("envoy", ".key"), b.l.CertFile("ca", ".crt")), "--tls-peer-names", certs.DemoSAN("sidecar"))
			},
			mend: (*bench).good,
		},
		{
			name: "bad-rules", what: "invalid first rules", says: "unknown key", check: "rules", finds: "cannot load its rules",
			alert: "KeywardNoRules", metric: "keyward_config_reloads_total",
			args: func(*bench) []string { return nil },
			mend: func(b *bench) []string {
				if err := b.l.WriteRules(b.sidecar, map[string]string{"app.yaml": brokenRules}); err != nil {
					b.t.Fatal(err)
				}
				return nil
			},
		},
		{
			name: "wrong-port", what: "`--join` has a port without a listener", ready: true, check: "ports", finds: "addresses that should be members and do not respond",
			alert: "KeywardMemberMissing", metric: "keyward_cluster_missing",
			args: func(*bench) []string { return []string{"--join", "127.0.0.1:1"} },
			mend: func(b *bench) []string { return []string{"--join", b.l.Sidecars[0].Gossip} },
		},
	}
}

// start starts the member in addition to the healthy ones.
func (x *broken) start(t *testing.T, l *lab.Lab) *bench {
	t.Helper()
	b := &bench{t: t, l: l, dir: t.TempDir()}
	well, rules := l.Sidecars, l.Rules
	if x.name == "bad-rules" {
		l.Rules = map[string]string{"app.yaml": strings.Replace(brokenRules, "rate_limit", "ratelimit", 1)}
	}
	s, err := l.AddSidecar(x.name, append(x.args(b), "--expect", "4")...)
	if err != nil {
		t.Fatal(err)
	}
	l.Sidecars, l.Rules = well, rules // no other member waits for it or joins it
	b.sidecar = s
	return b
}

// watched is how long broken members are watched; after 30 s they used to begin alone.
const watched = time.Minute

// TestBrokenMembers starts three members and one more for each misconfiguration. After the time of a cold start none that has addresses to join is on the ring or admits a
// whole limit, and its readiness, log, page, metrics and the doctor agree about the cause. Mended, each becomes ready and takes its place.
func TestBrokenMembers(t *testing.T) {
	l := newLab(t, lab.Options{Expect: 3, Rules: map[string]string{"app.yaml": brokenRules}})
	start(t, l, names(3)...)
	all := brokenMembers()
	benches := make([]*bench, len(all))
	for i := range all {
		benches[i] = all[i].start(t, l)
	}
	began := time.Now()
	for i, b := range benches {
		awaitPage(t, b.sidecar.Metrics)
		if !all[i].ready {
			all[i].refuses(t, b)
		}
	}
	steadily(watched - time.Since(began))
	for i, b := range benches {
		t.Run(all[i].name, func(t *testing.T) { all[i].judge(t, b) })
	}
	for i, b := range benches {
		all[i].repair(t, b)
	}
	compareTable(t, "TestBrokenMembers", brokenTable(all))
}

// refuses waits until the member says why it is not ready.
func (x *broken) refuses(t *testing.T, b *bench) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, x.name+" to say why it is not ready", func(ctx context.Context) error {
		if code, text := readiness(ctx, t, b.sidecar); code != http.StatusServiceUnavailable || !strings.Contains(text, x.says) {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// readiness returns the response of /readyz.
func readiness(ctx context.Context, t *testing.T, s *lab.Sidecar) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Metrics+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, strings.TrimSpace(string(text))
}

// pageOf returns a member's /cluster.
func pageOf(t *testing.T, s *lab.Sidecar) (v struct {
	Joined         bool
	Problem, Cause string
	Ring           struct{ Members []string }
	Unreachable    []struct{ Member, Reason string }
}) {
	t.Helper()
	body, err := lab.Get(t.Context(), "http://"+s.Metrics+"/cluster")
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// judge looks at the member and at one that is well, when a cold start would be over.
func (x *broken) judge(t *testing.T, b *bench) {
	code, text := readiness(t.Context(), t, b.sidecar)
	if (code == http.StatusOK) != x.ready {
		t.Errorf("/readyz: %d %s", code, text)
	}
	page, other := pageOf(t, b.sidecar), pageOf(t, b.l.Sidecars[0])
	if page.Cause != x.cause || x.cause != "" && (page.Joined && x.cause != "streams" || !strings.Contains(page.Problem, x.says) || slices.Contains(page.Ring.Members, x.name)) {
		t.Errorf("/cluster: %+v", page)
	}
	if x.cause == "streams" && !slices.ContainsFunc(other.Unreachable, func(u struct{ Member, Reason string }) bool { return u.Member == x.name }) {
		t.Errorf("/cluster of a member that is well: %+v", other)
	}
	if x.cause != "" && (slices.Contains(other.Ring.Members, x.name) || !strings.Contains(b.sidecar.Tail(1<<20), `msg="this member stays off the ring"`)) {
		t.Errorf("on the ring of the others: %v; the log:\n%s", other.Ring.Members, b.sidecar.Tail(4000))
	}
	if value(metrics(t, b.sidecar.Metrics), x.metric) == 0 {
		t.Errorf("%s is 0", x.metric)
	}
	alertsOn(t, x.alert, x.metric)
	x.diagnosed(t, b)
	if x.cause == "gossip" { // a member that is well knows no name of it, and names where it is
		found, _ := examine(t.Context(), t, "--member", b.l.Sidecars[0].Metrics)
		if !slices.ContainsFunc(found, func(d diagnosis) bool {
			return d.Check == "gossip keys" && d.Level == "warn" && strings.Contains(d.Text, "from 127.0.0.1 (")
		}) {
			t.Errorf("doctor that asks others: %+v", found)
		}
	}
	at, there := spendAt(t, b.sidecar.RLS, "k-"+x.name, 105), spendAt(t, b.l.Sidecars[0].RLS, "k-"+x.name, 105)
	if at > 50 || there != 100 || x.name == "bad-rules" && at != 0 {
		t.Errorf("%d admitted of 100, and %d by the others", at, there)
	}
	t.Logf("ready %v, on the ring of the others %v, admitted %d of 100: %s", code == http.StatusOK, slices.Contains(other.Ring.Members, x.name), at, text)
}

// alertsOn holds that an alert looks at a metric. That it fires is tested with the alerts.
func alertsOn(t *testing.T, alert, metric string) {
	t.Helper()
	text, err := os.ReadFile("../../dashboards/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "- alert: "+alert+"\n")
	expr, _, _ := strings.Cut(rest, "annotations:")
	if !ok || !strings.Contains(expr, metric) {
		t.Errorf("%s does not look at %s: %s", alert, metric, expr)
	}
}

// diagnosed holds that the first thing that the doctor finds wrong is the cause.
func (x *broken) diagnosed(t *testing.T, b *bench) {
	t.Helper()
	found, code := examine(t.Context(), t, "--member", b.l.Sidecars[0].Metrics+","+b.sidecar.Metrics)
	i := slices.IndexFunc(found, func(d diagnosis) bool { return d.Level != "ok" && strings.HasPrefix(d.Text, x.name+" ") })
	if i < 0 || found[i].Check != x.check || !strings.Contains(found[i].Text, x.finds) || found[i].Advice == "" || code == 0 && x.cause != "" {
		t.Errorf("doctor: exit code %d, %+v", code, found)
	}
}

// spendAt asks one member so many times about a key of its own, and returns how many are admitted.
func spendAt(t *testing.T, rls, value string, hits int) (admitted int) {
	t.Helper()
	client := dial(t, rls, nil)
	for range hits {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		res, err := client.ShouldRateLimit(ctx, request("app", 1, "user", value))
		cancel()
		if err == nil && res.OverallCode == rlsv3.RateLimitResponse_OK {
			admitted++
		}
	}
	return admitted
}

// repair does what the manual says, and waits until the member is ready and has its place; then it leaves.
func (x *broken) repair(t *testing.T, b *bench) {
	t.Helper()
	s := b.sidecar
	if flags := x.mend(b); flags != nil {
		if err := s.Stop(20 * time.Second); err != nil {
			t.Fatal(err)
		}
		if err := b.l.Restart(s, append(append(x.args(b), "--expect", "4"), flags...)...); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := lab.Await(ctx, x.name+", mended, to be ready and on the ring", func(ctx context.Context) error {
		code, text := readiness(ctx, t, s)
		if on := pageOf(t, b.l.Sidecars[0]).Ring.Members; code != http.StatusOK || !slices.Contains(on, x.name) {
			return fmt.Errorf("ring %v, %d %s", on, code, text)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := s.Stop(20 * time.Second); err != nil {
		t.Error(err)
	}
}

// brokenTable is the table of the manual.
func brokenTable(all []broken) string {
	var b strings.Builder
	fmt.Fprintln(&b, "| mistake | ready | on the ring | in /readyz, log and web page | first finding of doctor | metric | alert |\n|---|---|---|---|---|---|---|")
	for _, x := range all {
		ready, on, says := "no", "no", "`"+x.says+"`"
		switch {
		case x.ready:
			ready, on, says = "yes, with a share of each limit", "of its own", "-"
		case x.cause == "":
			on = "yes"
		}
		metric := "`" + x.metric + "`"
		if x.cause != "" {
			metric = fmt.Sprintf("`%s{cause=%q}`", x.metric, x.cause)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s: `%s` | %s | [%s](runbooks/%s.md) |\n", x.what, ready, on, says, x.check, x.finds, metric, x.alert, x.alert)
	}
	return b.String()
}

// compareTable holds that the manual has a table as a test made it; with KEYWARD_WRITE=1 it is put there.
func compareTable(t *testing.T, by, table string) {
	t.Helper()
	const page, end = "../../docs/troubleshooting.md", "<!-- end -->"
	begin := "<!-- made by " + by + ": begin -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	was, after, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		t.Errorf("%s has no place for the table", page)
	case was == table:
	case os.Getenv("KEYWARD_WRITE") != "":
		if err := os.WriteFile(page, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has another table; KEYWARD_WRITE=1 puts this one there:\n%s", page, table)
	}
}
