package module

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const costLimits = `[{"actions":[{"request_headers":{"header_name":"x-key","descriptor_key":"api_key"}}],"hits_addend":{"format":"%REQ(x-cost)%"}}]`

// upgradeStep describes the change of one window.
type upgradeStep struct {
	what  string // empty: nothing
	pod   int    // whose sidecar is replaced
	bin   string // its programs
	files string // of the pod's Envoy, which is started again with this module; empty: it stays
}

// TestUpgrade replaces sidecars one by one by those of another version and back, and Envoys by those with the module of the other
// version, while all spend one limit next to calls: an Envoy with the other version's module and configuration, one with the module
// of this version, and one with that as a matcher whose requests cost several hits. No window admits more than the limit, no
// request fails, and in the windows without a change the limit is used, mostly without calls. A pod has no load while a part of it
// is replaced. KEYWARD_BEFORE is the folder with the other version's programs; `make upgrade` builds them.
func TestUpgrade(t *testing.T) {
	before := os.Getenv("KEYWARD_BEFORE")
	if before == "" {
		t.Skip("`make upgrade` runs it")
	}
	old := filepath.Join(before, "module")
	if _, err := os.Stat(old); err != nil {
		t.Fatalf("KEYWARD_BEFORE: %v", err)
	}
	now := programs(t)
	f := startSidecars(t, before, newest, 3, clusterRules)
	f.pods[0].files = old
	f.pods[0].print = f.printed(before, f.pods[0])
	f.pods[2].release, f.pods[2].limits, f.pods[2].cost = newest.asMatcher(), costLimits, 3
	for _, p := range f.pods {
		p.start(t, 2)
	}
	upgrade := func(i int) upgradeStep { return upgradeStep{what: "sidecar upgraded", pod: i, bin: now} }
	downgrade := func(i int) upgradeStep { return upgradeStep{what: "sidecar downgraded", pod: i, bin: before} }
	steps := []upgradeStep{
		{}, upgrade(0), upgrade(1), upgrade(2), {}, // modules of both versions, sidecars of this one
		{"module upgraded", 0, now, modules()}, {"module downgraded", 1, now, old}, {},
		downgrade(0), downgrade(1), downgrade(2), {}, // and of the other one
		upgrade(2), upgrade(1), upgrade(0), {},
	}
	var uses []podUse
	windows := f.run(len(steps), func(i int) { uses = append(uses, f.use()); f.take(&steps[i]) })
	uses = append(uses, f.use())
	for i := range windows {
		f.judge(i, &windows[i], &steps[i], uses[i], uses[i+1])
	}
	f.expectLogs()
}

// printed returns the output of `keyward envoy-config --shape module` of the programs in bin, for a pod.
func (f *fleet) printed(bin string, p *pod) func(service, app string) string {
	return func(_, app string) string {
		out, err := exec.Command(filepath.Join(bin, "keyward"), "envoy-config", "--shape", "module", "--envoy-version", p.release.version,
			"--rules", filepath.Join(p.sidecar.Runtime, "ratelimit", "config"), "--from", "api_key=header:x-key", "--failure-mode-deny", "--timeout", "10s",
			"--module-socket", p.socket, "--sidecar", p.sidecar.RLS, "--upstream", app, "--listen", "127.0.0.1:1", "--envoy-admin", "127.0.0.1:2").Output()
		if err != nil {
			f.Fatalf("keyward envoy-config: %v", err)
		}
		return strings.NewReplacer("port_value: 1}", "port_value: @PORT@}", "port_value: 2}", "port_value: @ADMINPORT@}", "name: upstream", "name: app",
			"cluster: upstream", "cluster: app", "cluster_name: upstream", "cluster_name: app").Replace(string(out))
	}
}

// podUse has the requests that Envoys have admitted, and their calls that were admitted, by pod. Envoys that were started again
// begin at 0.
type podUse struct{ admitted, calls []float64 }

func (f *fleet) use() (u podUse) {
	for _, p := range f.pods {
		n, err := p.envoy.Stat(f.Context(), "cluster.app.ratelimit.ok")
		if err != nil {
			f.Fatal(err)
		}
		u.calls, u.admitted = append(u.calls, n), append(u.admitted, float64(p.admitted.Load()))
	}
	return u
}

// take takes a step of the upgrade.
func (f *fleet) take(s *upgradeStep) {
	if s.what == "" {
		return
	}
	p := f.pods[s.pod]
	url := p.url.Load()
	p.pause()
	if s.files != "" {
		if err := p.envoy.Stop(20 * time.Second); err != nil {
			f.Error(err)
		}
		p.files = s.files
	}
	if err := p.sidecar.Stop(40 * time.Second); err != nil {
		f.Error(err)
	}
	f.lab.Bin = s.bin
	if err := f.lab.Restart(p.sidecar, p.args...); err != nil {
		f.Fatal(err)
	}
	f.ready(p.sidecar)
	if s.files != "" {
		p.start(f.T, 2)
	} else {
		p.url.Store(url)
	}
}

// judge checks a window. uses were measured 2 s after its begin and after that of the next one.
func (f *fleet) judge(i int, w *window, s *upgradeStep, from, to podUse) {
	f.Logf("window %d, pod %d %s: %d sent, %d admitted of %d, %d by callers, %d failed", i, s.pod, cmp.Or(s.what, "and all others unchanged"), w.sent.Load(), w.admitted.Load(), clusterLimit, w.byCalls.Load(), w.failed.Load())
	if n := w.failed.Load(); n > 0 {
		f.Errorf("window %d: %d requests failed", i, n)
	}
	if n := w.admitted.Load(); n > clusterLimit || s.what == "" && n < clusterLimit*98/100 {
		f.Errorf("window %d: %d admitted, the limit is %d", i, n, clusterLimit)
	}
	if s.what != "" {
		return
	}
	for j := range f.pods {
		admitted, calls := to.admitted[j]-from.admitted[j], to.calls[j]-from.calls[j]
		f.Logf("window %d, pod %d: %v of %v admissions by Envoy took a call", i, j, calls, admitted)
		if calls > admitted/2 {
			f.Errorf("window %d, pod %d: %v of %v admissions took a call", i, j, calls, admitted)
		}
	}
}

// expectedLogs are the warnings of a cluster without TLS on one machine, those about members that leave, and those of a machine with
// so much other load that heartbeats are late.
var expectedLogs = regexp.MustCompile(`msg="(--insecure is set|insecure:|no admin socket;|peer unreachable")|` +
	`msg=gossip |msg="ownership revoked; peers may take over"`)

// expectLogs checks that sidecars have logged no errors, and no other warnings than those that are expected of a rolling update.
func (f *fleet) expectLogs() {
	for _, p := range f.pods {
		log, err := os.ReadFile(p.sidecar.Log)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") && !expectedLogs.MatchString(line) {
				f.Errorf("%s: %s", p.sidecar.Name, line)
			}
		}
	}
}
