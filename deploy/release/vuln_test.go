package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnreachableVulnerabilities requires that scripts/vuln reports an unreachable database, and that this makes a
// release fail.
func TestUnreachableVulnerabilities(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	for strict, fails := range map[string]bool{"0": false, "1": true} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "vuln"))
		cmd.Env = append(os.Environ(), "GOVULNDB=http://127.0.0.1:1", "STRICT="+strict) // no process listens on port 1
		out, err := cmd.CombinedOutput()
		if (err != nil) != fails || !strings.Contains(string(out), "NOT CHECKED") {
			t.Errorf("STRICT=%s: %v\n%s", strict, err, out)
		}
	}
	var w workflow
	parse(t, workflowFile, &w)
	if s := find(t, w, "Check for vulnerabilities"); s.Run != "scripts/vuln" || s.Env["STRICT"] != "1" {
		t.Errorf("the workflow runs %q with %v, want scripts/vuln with STRICT=1", s.Run, s.Env)
	}
}
