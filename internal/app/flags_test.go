package app

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

func env(kv ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return func(k string) string { return m[k] }
}

func TestParse(t *testing.T) {
	f, err := Parse("sidecar", "", []string{"--node", "a", "--insecure", "--join", "x:1,dns+y:2", "--no-hot"},
		env("KEYWARD_HOT_RATE", "70.5", "KEYWARD_NODE", "b", "KEYWARD_EXPECT", "3", "KEYWARD_DECISION_TIMEOUT", "7ms", "POD_NAME", "c"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Node != "a" || f.Expect != 3 || f.DecisionTimeout.String() != "7ms" || len(f.Join) != 2 || f.Join[1] != "dns+y:2" || f.HotRate != 70.5 || !f.NoHot {
		t.Errorf("%+v", f)
	}
	if f, err = Parse("sidecar", "", nil, env("POD_NAME", "c")); err != nil || f.Node != "c" {
		t.Errorf("POD_NAME: %q, %v", f.Node, err)
	}
	if _, err := Parse("sidecar", "", []string{"--help"}, env()); !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}

func TestParseNamesEveryFault(t *testing.T) {
	_, err := Parse("sidecar", "", []string{
		"stray", "--gossip", "nowhere", "--ring-capacity", "10000", "--partition", "maybe", "--join", "x:1", "--tls-cert", "a",
		"--weight", "0", "--peer", "::1:7947", "--route-listener", "edge:80", "--hot-rate", "NaN",
		"--connection-age", "1ms", "--max-connections", "0", "--rls-door", "front", "--tls-bind-name", "no-place",
		"--allow-negative-hits", "some", "--allowed-hosts", "http://x,ok.example",
	}, env("KEYWARD_EXPECT", "many", "POD_NAME", strings.Repeat("n", 129)))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"stray", "--gossip", "--ring-capacity 10000", "--partition", "--gossip-key-file", "--insecure", "belong together", "--weight", "--hot-rate", "brackets", "not on names",
		"--connection-age", "--max-connections", "want one {node}", `--rls-server "front": want inline`,
		"KEYWARD_EXPECT", "129 bytes", "want local, certificate or any", `--allowed-hosts: "http://x"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q:\n%v", want, err)
		}
	}
}

// TestCommandLineFaults compares the errors of a faulty command line.
func TestCommandLineFaults(t *testing.T) {
	for _, row := range []struct{ args, want string }{
		{"--gosip-key-file x --expect many --weight -1", "--gosip-key-file: no such flag; did you mean --gossip-key-file?\n" +
			`--expect "many": want a whole number` + "\n" + `--weight "-1": want a whole number from 0 to 4294967295`},
		{"--gosip-key-file=x stray", "--gosip-key-file: no such flag; did you mean --gossip-key-file?\nunexpected arguments: stray"},
		{"--insecur stray", "--insecur: no such flag; did you mean --insecure?\nunexpected arguments: stray"},
		{"--zzzzzzzz --color red --weight 0", "--zzzzzzzz: no such flag; --help lists them\n--color: no such flag; --help lists them\n--weight 0: must be at least 1"},
		{"-node a", "-node: no such flag; did you mean --node?"},
		{"--join", "--join: the value is missing: want values with commas between them"},
		{"--insecure=perhaps --nref-decay 5 --hot-rate x", `--insecure "perhaps": want true or false` + "\n" +
			`--nref-decay "5": want a duration like 500ms or 1m30s` + "\n" + `--hot-rate "x": want a number`},
		{"--insecure -- --node", "unexpected arguments: --node"},
	} {
		if _, err := Parse("sidecar", "", strings.Fields(row.args), env()); fmt.Sprint(err) != row.want {
			t.Errorf("%s:\n got %v\nwant %s", row.args, err, row.want)
		}
	}
	if _, err := Parse("sidecar", "", []string{"--node", "a"}, env("KEYWARD_EXPECT", "many")); fmt.Sprint(err) != `KEYWARD_EXPECT="many": want a whole number` {
		t.Error(err)
	}
	for _, help := range []string{"--help", "-h", "--nod x --help"} {
		if _, err := Parse("sidecar", "", strings.Fields(help), env()); !errors.Is(err, pflag.ErrHelp) {
			t.Errorf("%s: %v", help, err)
		}
	}
}

// TestProcessNamesEveryFault requires that a sidecar that cannot start prints all faults of its flags.
func TestProcessNamesEveryFault(t *testing.T) {
	cmd := exec.Command(os.Args[0], "--gosip-key-file", "x", "--weight", "0", "--partition", "maybe")
	cmd.Env = append(os.Environ(), asSidecar+"=1")
	out, err := cmd.CombinedOutput()
	want := "sidecar: cannot start:\n--gosip-key-file: no such flag; did you mean --gossip-key-file?\n" +
		"--partition \"maybe\": want share, available or quorum\n--weight 0: must be at least 1\n"
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || string(out) != want {
		t.Errorf("%v\n got %s\nwant %s", err, out, want)
	}
}

// TestAdminIsNamed requires that the error of the admin socket names the flag.
func TestAdminIsNamed(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(dir, "nowhere")
	for socket, want := range map[string]string{
		nowhere + "/admin.sock": "sidecar: --admin unix:" + nowhere + "/admin.sock: the directory " + nowhere + " does not exist: create it, or choose another socket\n",
		file:                    "sidecar: --admin unix:" + file + ": " + file + ": the file exists and is not a socket\n",
	} {
		p := launch(t, "a", "--admin", "unix:"+socket)
		<-p.ended
		if got := p.log.String(); !strings.HasSuffix(got, want) || p.cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%s: exit %d\n got %s\nwant %s", socket, p.cmd.ProcessState.ExitCode(), got, want)
		}
	}
}

// Numbers that cannot apply are refused: a member without --join never meets the members of --expect.
func TestParseAmounts(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--expect=3", "--expect 3 needs --join"},
		{"--expect=1", ""},
		{"--expect=3 --join=x:1 --insecure", ""},
		{"--expect=-1", "--expect -1: want 0 to"},
		{"--expect=9000", "--expect 9000: want 0 to"},
		{"--expect-timeout=1m", "--expect-timeout 1m0s needs --expect"},
		{"--expect-timeout=1m --expect=3 --join=x:1 --insecure", ""},
		{"--max-keys=9999999999999", "--max-keys 9999999999999: want 1 to"},
		{"--detection=999ms", "--detection 999ms: want 1s to 30s"},
		{"--detection=31s", "--detection 31s: want 1s to 30s"},
		{"--detection=0", "--detection 0s: want 1s to 30s"},
		{"--detection=1500001us --max-keys=-1", "--detection 1.500001s: want 1s to 30s, in whole milliseconds\n--max-keys -1"},
		{"--detection=1500ms", ""},
		{"--max-keys=0", "--max-keys 0: want 1 to"},
		{"--ring=envoy --ring-host=:8080", ""},
		{"--ring=maglev", `--ring "maglev": want keyward or envoy`},
		{"--ring=envoy", "--ring envoy needs --ring-host"},
		{"--ring-host=:8080", "needs --ring envoy"},
		{"--ring=envoy --ring-host=a --xds=:18000", "--xds with --ring envoy"},
		{"--ring=envoy --ring-host=a --ring-hash=md5", `--ring-hash "md5": want xx or murmur2`},
		{"--ring=envoy --ring-host=a --ring-min-size=8388608", "minimum_ring_size 8388608: must be 1 to 1048576"},
		{"--ring=envoy --ring-host=a --ring-min-size=2000 --ring-max-size=1000", "minimum_ring_size 2000: above maximum_ring_size 1000"},
		{"--prime-listener=127.0.0.1:18002 --xds=127.0.0.1:18000", ""},
		{"--prime-listener=127.0.0.1:0 --xds=127.0.0.1:18000", `--prime-listener "127.0.0.1:0": not a loopback address and port`},
		{"--prime-listener=127.0.0.1:18002", "--prime-listener needs --xds"},
		{"--module-socket=/run/m.sock", ""},
		{"--module-socket=/run/" + strings.Repeat("m", 103) + " --module-socket-mode=0688", "want octal digits like 0600, not \"0688\"\n--module-socket: /run/" +
			strings.Repeat("m", 103) + ": the path has 108 bytes; want at most 107"},
		{"--snapshot-age=1ms", ""},
		{"--snapshot-age=10m", ""},
		{"--snapshot-age=0s", "--snapshot-age 0s: want more than 0, and at most 10m0s"},
		{"--snapshot-age=601s", "--snapshot-age 10m1s: want more than 0, and at most 10m0s"},
	} {
		_, err := Parse("sidecar", "", strings.Fields("--node=a "+c.args), env())
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

// TestRingFlags requires that the flags describe the ring of Envoy's cluster, and this member's host on it.
func TestRingFlags(t *testing.T) {
	getenv := env("POD_NAME", "shard-0", "POD_IP", "10.0.0.7", "KEYWARD_RING", "envoy", "KEYWARD_RING_HOST", ":8080", "KEYWARD_RING_HASH", "murmur2")
	f, err := Parse("sidecar", "", nil, getenv)
	if err != nil {
		t.Fatal(err)
	}
	lookup := func(name string) (string, bool) { return getenv(name), getenv(name) != "" }
	o := f.gossip(membership.RoleMember, lookup)
	if o.RingHost != "10.0.0.7:8080" || o.Ring != ring.EnvoyParameters(0, 0, ring.Murmur2) {
		t.Errorf("host %q, ring %v", o.RingHost, o.Ring)
	}
	if o := f.gossip(membership.RoleObserver, lookup); o.Ring.Envoy || o.RingHost != "" {
		t.Errorf("an observer has the host %q", o.RingHost)
	}
	f.Host = "shard-0"
	if o := f.gossip(membership.RoleMember, lookup); o.RingHost != "shard-0" {
		t.Errorf("the host name is announced as %q", o.RingHost)
	}
}

// Every flag in the manual exists and has an environment variable.
func TestFlagNames(t *testing.T) {
	s := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(flags).define(s, env())
	for _, name := range []string{
		"node", "gossip", "peer", "xds", "metrics", "advertise", "join", "cluster", "expect", "expect-timeout", "rls-advertise", "decision-timeout", "partition",
		"ring-capacity", "ring", "ring-host", "ring-min-size", "ring-max-size", "ring-hash", "lost-state", "nref-decay", "detection", "snapshot-age", "admin", "gossip-key-file", "tls-cert", "tls-key", "tls-ca", "insecure", "rls-plaintext", "rls-server", "rls-door",
	} {
		if s.Lookup(name) == nil {
			t.Errorf("no flag --%s", name)
		}
	}
}

func TestReachable(t *testing.T) {
	for _, c := range []struct{ listen, advertise, want string }{
		{":7947", "10.0.0.1", "10.0.0.1:7947"}, {"0.0.0.0:7947", "10.0.0.1", "10.0.0.1:7947"}, {"[::]:7947", "fd00::1", "[fd00::1]:7947"},
		{"127.0.0.1:7947", "10.0.0.1", "127.0.0.1:7947"}, {":7947", "", ":7947"}, {"0.0.0.0:7947", "10.0.0.1:9", "10.0.0.1:7947"}, {"", "10.0.0.1", ""},
	} {
		if got := reachable(c.listen, c.advertise); got != c.want {
			t.Errorf("reachable(%q, %q) = %q, want %q", c.listen, c.advertise, got, c.want)
		}
	}
}

// TestShownFlags requires that the values of flags that a member shows contain no passwords.
func TestShownFlags(t *testing.T) {
	f, _ := Parse("sidecar", "", []string{
		"--insecure", "--region", "eu", "--federation", "f.yaml", "--authority", "home=redis://u:hidden@a:1/0?wait=1,near=redis://:hid@den@b", "--authority", "file=@/run/url",
	}, env())
	got := f.effective["authority"]
	for _, want := range []string{"home=redis://...@a:1/0?wait=1", "near=redis://...@b", "file=@/run/url"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
	if strings.Contains(got, "hid") || strings.Contains(got, "u:") {
		t.Errorf("a password is shown: %s", got)
	}
}

// TestRuleDefaults requires that --rule-defaults is read from its value, a file and the environment, and that its faults
// are those of the start.
func TestRuleDefaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "defaults.yaml")
	if err := os.WriteFile(file, []byte("d: {reserve: 100, lapse: release}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := []string{"--node", "a", "--insecure"}
	for _, from := range []struct {
		args []string
		env  func(string) string
	}{
		{[]string{"--rule-defaults", `{"d": {"reserve": 100, "lapse": "release"}}`}, env()},
		{[]string{"--rule-defaults", "@" + file}, env()},
		{nil, env("KEYWARD_RULE_DEFAULTS", "d: {reserve: 100, lapse: release}")},
	} {
		f, err := Parse("sidecar", "", append(slices.Clone(base), from.args...), from.env)
		if err != nil || f.ruleDefaults["d"]["reserve"] != 100 || f.ruleDefaults["d"]["lapse"] != "release" {
			t.Errorf("%v: %v, %v", from.args, f.ruleDefaults, err)
		}
	}
	for value, want := range map[string]string{
		"d: {reserv: 5}": "--rule-defaults: domain 'd': unknown key 'reserv' (did you mean 'reserve'?)",
		"@" + file + "x": "--rule-defaults: open " + file + "x:",
	} {
		if _, err := Parse("sidecar", "", append(slices.Clone(base), "--rule-defaults", value), env()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// TestVersionFlag requires that --version is recognized among other flags, and not in what follows "--".
func TestVersionFlag(t *testing.T) {
	for args, want := range map[string]bool{"--version": true, "--node a --version": true, "": false, "--node a": false, "-- --version": false} {
		if got := asksVersion(strings.Fields(args)); got != want {
			t.Errorf("%q: %v, want %v", args, got, want)
		}
	}
}
