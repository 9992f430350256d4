package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDemo: the demo makes a key hot, kills an owner, rolls all sidecars and kills all of them by itself, and ends well: no request
// failed while a sidecar ran, and nothing was admitted above a limit but what a crash may add.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(filepath.Join(bin(t), "keyward"), "demo", "--for", "45s", "--envoy", envoyBinary(t), "--keep", dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{"viral is hot: Envoy spreads it over", "killed sidecar-", "has restarted and counts again", "all sidecars were restarted", "killed all sidecars at once", "all sidecars are back: month-nina continues at ", ", 0 failed; above the limits: "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing of %q in\n%s", want, out)
		}
	}
	logs, _ := filepath.Glob(filepath.Join(dir, "log", "*.log"))
	for _, f := range logs {
		if b, _ := os.ReadFile(f); t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(f), tail(b, 12000))
		}
	}
}

// TestDemoNoCall: three Envoys spend one limit without calls, and no window has more than the limit.
func TestDemoNoCall(t *testing.T) {
	cmd := exec.Command(filepath.Join(bin(t), "keyward"), "demo", "--no-call", "--for", "25s", "--envoy", envoyBinary(t))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if got := regexp.MustCompile(`messages/request +0\.0[0-9]+ +[01]\.[0-9]+\n`).FindAll(out, -1); len(got) == 0 {
		t.Errorf("not far fewer messages than requests in\n%s", out)
	}
	if got := regexp.MustCompile(`without calls: +(\d+) requests admitted`).FindSubmatch(out); got == nil || len(got[1]) < 4 {
		t.Errorf("fewer than 1000 requests were admitted without calls:\n%s", out)
	}
}

// TestDemoRegions: the demo of regions cuts one off, heals it and moves the demand by itself. It ends well: no window had more
// than the limit of all regions together.
func TestDemoRegions(t *testing.T) {
	cmd := exec.Command(filepath.Join(bin(t), "keyward"), "demo", "--regions", "3", "--for", "48s")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"eu is cut off: it has its floor of 5", "eu reaches the coordinator again", "the demand moves from eu to us", " 0 failed. The most of one window: ",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing of %q in\n%s", want, out)
		}
	}
}
