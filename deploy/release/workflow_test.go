package release

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// workflow is the part of the release workflow that the tests check.
type workflow struct {
	On          map[string]map[string][]string
	Permissions map[string]string
	Jobs        map[string]job
}

type job struct {
	Permissions map[string]string
	Needs       words
	Timeout     int `yaml:"timeout-minutes"`
	Strategy    struct{ Matrix map[string][]string }
	Steps       []step
}

// words is a list in YAML, or one word.
type words []string

func (w *words) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*w = words{n.Value}
		return nil
	}
	return n.Decode((*[]string)(w))
}

type step struct {
	Name string
	Uses yaml.Node // its comment has the version
	Run  string
	With map[string]string
	Env  map[string]string
}

const workflowFile = ".github/workflows/release.yml"

// allowed are the permissions of each job. What builds may not publish, and what publishes may not change the repository.
var allowed = map[string]map[string]string{
	"build":     {"contents": "read"},
	"reproduce": {"contents": "read"},
	"publish":   {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"},
	"materials": {"packages": "write", "id-token": "write", "attestations": "write"},
	"draft":     {"contents": "write"},
}

// needs are the jobs that must have succeeded before each job.
var needs = map[string]words{
	"build": nil, "reproduce": {"build"}, "publish": {"build", "reproduce"}, "materials": {"build", "publish"}, "draft": {"publish", "materials"},
}

// TestWorkflowPermissions requires that no permission is granted to all jobs, that each job has exactly the permissions
// it needs, that jobs wait for each other, and that only tags start the workflow.
func TestWorkflowPermissions(t *testing.T) {
	var w workflow
	parse(t, workflowFile, &w)
	if w.Permissions == nil || len(w.Permissions) > 0 {
		t.Errorf("every job is granted %v, want an empty mapping", w.Permissions)
	}
	if len(w.On) != 1 || len(w.On["push"]) != 1 || !slices.Equal(w.On["push"]["tags"], []string{"v[0-9]*"}) {
		t.Errorf("started by %v", w.On)
	}
	if len(w.Jobs) != len(allowed) {
		t.Errorf("the jobs are %v", slices.Sorted(maps.Keys(w.Jobs)))
	}
	for name, j := range w.Jobs {
		if !maps.Equal(j.Permissions, allowed[name]) {
			t.Errorf("job %s may %v, want %v", name, j.Permissions, allowed[name])
		}
		if !slices.Equal(j.Needs, needs[name]) {
			t.Errorf("job %s waits for %v, want %v", name, j.Needs, needs[name])
		}
		if j.Timeout == 0 {
			t.Errorf("job %s has no timeout", name)
		}
	}
}

var (
	action  = regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)
	version = regexp.MustCompile(`^# v\d+\.\d+\.\d+$`)
	tool    = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)
)

// TestWorkflowIsPinned requires that each action is pinned by one commit with the version in a comment, that tools have
// exact versions, that scripts contain no expressions, and that no credential remains in the checkout.
func TestWorkflowIsPinned(t *testing.T) {
	var w workflow
	parse(t, workflowFile, &w)
	pins := map[string]string{}
	for name, j := range w.Jobs {
		for _, s := range j.Steps {
			if strings.Contains(s.Run, "${{") {
				t.Errorf("job %s, step %q: an expression in a script; use env", name, s.Name)
			}
			uses := s.Uses.Value
			if uses == "" {
				continue
			}
			if !action.MatchString(uses) || !version.MatchString(s.Uses.LineComment) {
				t.Errorf("job %s, step %q: %s %s: want OWNER/NAME@COMMIT # vX.Y.Z", name, s.Name, uses, s.Uses.LineComment)
			}
			repository, _, _ := strings.Cut(uses, "@")
			if pin := uses + s.Uses.LineComment; pins[repository] != "" && pins[repository] != pin {
				t.Errorf("%s is pinned twice: %s and %s", repository, pins[repository], pin)
			} else {
				pins[repository] = pin
			}
			switch repository {
			case "actions/checkout":
				if s.With["persist-credentials"] != "false" {
					t.Errorf("job %s: the token stays in the checkout", name)
				}
			case "sigstore/cosign-installer":
				if !tool.MatchString(s.With["cosign-release"]) {
					t.Errorf("job %s installs cosign %q, want an exact version", name, s.With["cosign-release"])
				}
			}
		}
	}
	if len(pins) < 7 {
		t.Errorf("only %d actions were seen", len(pins))
	}
}

// called matches a script of this repository in a command, with the command of scripts/release.
var called = regexp.MustCompile(`(?m)(?:^|[\s($])((?:scripts|test/kube/tools)/[a-z-]+)((?:(?: build| try| provenance| push| notes)\b)?)`)

// calls returns the scripts that a text runs, in order, each once.
func calls(text string) (all []string) {
	for _, m := range called.FindAllStringSubmatch(text, -1) {
		if c := m[1] + m[2]; !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// TestWorkflowRunsTheDryRun requires that the workflow's scripts exist and are those of the dry run, apart from the one
// that pushes, so that the dry run tries everything that a release runs.
func TestWorkflowRunsTheDryRun(t *testing.T) {
	var w workflow
	parse(t, workflowFile, &w)
	var run strings.Builder
	for _, name := range []string{"build", "reproduce", "publish", "materials", "draft"} {
		for _, s := range w.Jobs[name].Steps {
			run.WriteString(s.Run + "\n")
		}
	}
	published := calls(run.String())
	var tried []string
	for line := range strings.Lines(read(t, "scripts/release-dry-run")) {
		if !strings.HasPrefix(line, "#") {
			tried = append(tried, calls(line)...)
		}
	}
	for _, c := range published {
		script, _, _ := strings.Cut(c, " ")
		if info, err := os.Stat(filepath.Join(root, script)); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("the workflow runs %s, which is not an executable file: %v", script, err)
		}
		if c != "scripts/release push" && !slices.Contains(tried, c) {
			t.Errorf("the workflow runs %s, the dry run does not: %v", c, tried)
		}
	}
	for _, c := range tried {
		if !slices.Contains(published, c) {
			t.Errorf("the dry run runs %s, the workflow does not: %v", c, published)
		}
	}
	if len(published) != 8 {
		t.Errorf("the workflow runs %v", published)
	}
	if !strings.Contains(read(t, "Makefile"), "scripts/release-dry-run") {
		t.Error("make release-dry-run does not run scripts/release-dry-run")
	}
}

// named matches the steps in the document: "1. **Name**".
var named = regexp.MustCompile(`(?m)^\d+\. \*\*([^*]+)\*\*`)

// TestWorkflowMatchesDocument requires that docs/releasing.md has a section for each job, and lists in it all steps of
// the job that do more than prepare the machine, in order.
func TestWorkflowMatchesDocument(t *testing.T) {
	var w workflow
	parse(t, workflowFile, &w)
	page := read(t, "docs/releasing.md")
	for name, j := range w.Jobs {
		_, text, ok := strings.Cut(page, "The job `"+name+"`")
		if !ok {
			t.Errorf("the document does not describe the job %s", name)
			continue
		}
		text, _, _ = strings.Cut(text, "The job `")
		text, _, _ = strings.Cut(text, "\n## ")
		var want, got []string
		for _, s := range j.Steps {
			if !prepares(s) {
				want = append(want, s.Name)
			}
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			got = append(got, m[1])
		}
		if !slices.Equal(got, want) {
			t.Errorf("job %s: the document lists %q, the steps are %q", name, got, want)
		}
	}
	if !strings.Contains(page, workflowFile+"@refs/tags/") {
		t.Errorf("the document does not verify the identity of %s", workflowFile)
	}
}

// prepares reports whether a step only brings something to the machine of a job, or takes it to the next job.
func prepares(s step) bool {
	return slices.ContainsFunc([]string{"Check out ", "Install ", "Log in ", "Get ", "Keep ", "Record "}, func(verb string) bool { return strings.HasPrefix(s.Name, verb) })
}

// TestAttestations requires that everything that is published is signed without a key, has the provenance that
// scripts/release writes, and that programs have a bill of materials on each platform.
func TestAttestations(t *testing.T) {
	var w workflow
	parse(t, workflowFile, &w)
	sign := find(t, w, "Sign").Run
	for _, want := range []string{`cosign sign --yes "$image"; done < dist/files/images.txt`, "cosign sign-blob --yes --bundle dist/signatures/checksums.txt.sigstore.json dist/files/checksums.txt"} {
		if !strings.Contains(sign, want) || strings.Contains(sign, "--key") {
			t.Errorf("not signed by %q: %s", want, sign)
		}
	}
	subjects := map[string]bool{}
	for name, j := range w.Jobs {
		for _, s := range j.Steps {
			if !strings.HasPrefix(s.Uses.Value, "actions/attest@") {
				continue
			}
			if (s.With["subject-digest"] != "") != (s.With["push-to-registry"] == "true") {
				t.Errorf("job %s, step %q: %v", name, s.Name, s.With)
			}
			what := s.With["subject-name"] + s.With["subject-checksums"]
			switch {
			case s.With["sbom-path"] != "":
				what = "materials of " + what
			case s.With["predicate-type"] != "https://slsa.dev/provenance/v1" || s.With["predicate-path"] != "dist/provenance.predicate.json":
				t.Errorf("job %s, step %q attests %v", name, s.Name, s.With)
			}
			subjects[what] = true
		}
	}
	want := []string{"dist/files/checksums.txt", "ghcr.io/keyward/charts/keyward", "ghcr.io/keyward/charts/keyward-lib", "ghcr.io/keyward/keyward", "ghcr.io/keyward/keyward-module", "materials of ", "materials of ghcr.io/keyward/keyward"}
	if got := slices.Sorted(maps.Keys(subjects)); !slices.Equal(got, want) {
		t.Errorf("attested are %q, want %q", got, want)
	}
	if got := w.Jobs["materials"].Strategy.Matrix["platform"]; !slices.Equal(got, platforms) {
		t.Errorf("bills of materials are attested for %v, want %v", got, platforms)
	}
}

// platforms are those of a release.
var platforms = []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"}

func find(t *testing.T, w workflow, name string) step {
	t.Helper()
	for _, j := range w.Jobs {
		for _, s := range j.Steps {
			if s.Name == name {
				return s
			}
		}
	}
	t.Errorf("there is no step %q", name)
	return step{}
}
