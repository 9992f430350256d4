package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/settings"
)

func TestParseCoordinator(t *testing.T) {
	f, err := parseCoordinator("", []string{"--federation", "x.yaml", "--insecure"}, env("KEYWARD_STORE", "memory", "KEYWARD_METRICS", "127.0.0.1:1"))
	if err != nil || f.Store != memoryStore || f.Federation != "x.yaml" || f.Listen != ":7948" || f.Metrics != "127.0.0.1:1" || !f.Insecure || f.Init {
		t.Errorf("%+v %v", f, err)
	}
	if _, err := parseCoordinator("", []string{"--help"}, env()); !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	_, err = parseCoordinator("", []string{"--stor", "redis://:hidden@x", "--listen", "", "--metrics", "1", "--init=maybe", "--", "redis://:hidden@x"}, env())
	for _, want := range []string{
		"--stor: no such flag; did you mean --store?", "--federation is missing", "--store is missing", "--listen is empty", `--metrics "1"`,
		`--init "maybe": want true or false`, "or --insecure on a laptop", "unexpected arguments: redis://...",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q", want)
		}
	}
	if strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
}

// TestOpenStore requires that errors name the flag and hide the password.
func TestOpenStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(file, []byte(" redis://:hidden@localhost:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stores := map[string]OpenStore{"other": func(context.Context, string, string, federation.TermOf) (CoordinatorStore, error) {
		return CoordinatorStore{}, errors.New("open other: broken")
	}}
	for at, want := range map[string]string{
		"memory": "", "@" + file: "", "rediss://:hidden@localhost:1": "",
		"@/nonexistent": "--store: open /nonexistent", "other://u:hidden@x": "--store: open other: broken",
		"mysql://u:hidden@x": "--store: want memory or a URL that begins with redis://, rediss://, other://", "hidden": "--store: want memory",
		"redis://u:hidden@x?y=1": "--store: open redis: unknown parameter y",
	} {
		s, err := openStore(&coordinatorFlags{Store: at}, nil, stores)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden")) {
			t.Errorf("%s: %v", at, err)
		}
		s.close()
	}
}

// TestLent requires that only hits which a region did not have are counted.
func TestLent(t *testing.T) {
	key := func(n uint64) federation.Key { return federation.Key{n} }
	rs := []federation.PoolRequest{
		{Key: key(1), Seq: 1}, {Key: key(2), Seq: 1}, {Key: key(3), Seq: 5, Window: 7, Have: 30}, {Key: key(4), Seq: 5, Window: 6, Have: 30},
		{Key: key(1), Seq: 2, Window: 7, Have: 30},
	}
	gs := []federation.PoolGrant{
		{Key: key(1), Seq: 1, Window: 7, Total: 10}, {Key: key(3), Seq: 5, Window: 7, Total: 35}, {Key: key(4), Seq: 5, Window: 7, Total: 100},
	}
	if n := lent(rs, gs); n != 10+5+100 {
		t.Errorf("%d hits", n)
	}
	if n := lent(rs, nil); n != 0 {
		t.Errorf("%d hits without grants", n)
	}
}

func TestStoreHealth(t *testing.T) {
	var h storeHealth
	away := errors.New("away")
	if !errors.Is(h.get(), errUnchecked) {
		t.Error(h.get())
	}
	for i, step := range []struct {
		err     error
		changed bool
	}{{nil, true}, {nil, false}, {away, true}, {errors.New("still away"), false}, {nil, true}} {
		if changed := h.set(step.err); changed != step.changed || !errors.Is(h.get(), step.err) {
			t.Errorf("step %d: changed %v, %v", i, changed, h.get())
		}
	}
}

// TestDialCoordinator requires that sidecars use TLS with their own certificate, or --insecure.
func TestDialCoordinator(t *testing.T) {
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	x := federations{region: "a"}
	log := logger(os.Stderr, settings.ServerSettings{})
	for _, tt := range []struct {
		url      string
		files    certs.Files
		insecure bool
		want     string
	}{
		{"keyward://localhost", certs.DemoFiles(dir, "sidecar"), false, ""},
		{"keyward://[::1]:1/", certs.Files{}, true, ""},
		{"keyward://localhost:7948", certs.Files{}, false, "needs --tls-cert, --tls-key and --tls-ca, or --insecure"},
		{"keyward://localhost:7948", certs.Files{CA: filepath.Join(dir, "nothing")}, true, "no such file"},
		{"keyward://u:hidden@localhost:7948", certs.Files{}, true, "want keyward://host:port"},
		{"keyward://localhost:hidden", certs.Files{}, true, "want keyward://host:port"},
		{"keyward://:7948", certs.Files{}, true, "want keyward://host:port"},
		{"keyward://localhost/x", certs.Files{}, true, "want keyward://host:port"},
		{"http://localhost", certs.Files{}, true, "begins with keyward://, redis:// or rediss://"},
	} {
		f := &flags{securityFlags: securityFlags{TLS: tt.files, Insecure: tt.insecure}}
		x.security = newSecurity(f, certs.Files{}, prometheus.NewRegistry(), log)
		x.layouts = &layouts{}
		s, err := federation.NewLayoutSchedule("a", time.Minute, []*federation.Layout{{Epoch: 7}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		x.layouts.schedule.Store(s)
		c, err := x.openAuthority(tt.url)
		if closer, ok := c.(interface{ Close() }); ok && err == nil {
			closer.Close()
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hidden")) {
			t.Errorf("%s: %v, want %q", tt.url, err, tt.want)
		}
	}
}

// TestStoreIsSetUpLater requires that a store which cannot be set up at the start is set up when it is available.
func TestStoreIsSetUpLater(t *testing.T) {
	var tries int
	c, err := newCoordinator(&coordinatorFlags{Store: memoryStore}, nil, logger(os.Stderr, settings.ServerSettings{}))
	if err != nil {
		t.Fatal(err)
	}
	c.store.Setup = func(context.Context) error {
		if tries++; tries < 3 {
			return errors.New("away")
		}
		return nil
	}
	for want := range 3 {
		if done := c.setUp(t.Context()); done != (want == 2) {
			t.Errorf("try %d: %v", want, done)
		}
	}
	c.check(t.Context())
	r := federation.PoolRequest{Rule: limit.Rule{Limit: 9, Window: time.Hour}, Pool: 9, Seq: 1, Tokens: 9}
	m := measuredStore{c.store, c.metrics}
	if err := m.Reconcile(t.Context(), "a", []federation.PoolRequest{r}); err != nil || c.health.get() != nil {
		t.Error(err, c.health.get())
	}
}
