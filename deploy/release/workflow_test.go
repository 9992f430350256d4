package release

import (
	"maps"
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
	Needs       string
	Steps       []step
}

type step struct {
	Name string
	Uses yaml.Node // its comment has the version
	Run  string
	With map[string]string
	Env  map[string]string
}

const workflowFile = ".github/workflows/release.yml"

// allowed are the permissions of each job.
var allowed = map[string]map[string]string{
	"release":   {"contents": "write", "packages": "write", "id-token": "write", "attestations": "write"},
	"reproduce": {"contents": "read"},
}

// TestWorkflowPermissions requires that no permission is granted to all jobs, that each job has exactly the permissions
// it needs, and that only tags start the workflow.
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
			case "goreleaser/goreleaser-action", "azure/setup-helm":
				if !tool.MatchString(s.With["version"]) {
					t.Errorf("%s installs version %q, want an exact one", repository, s.With["version"])
				}
			}
		}
	}
	if len(pins) < 8 {
		t.Errorf("only %d actions were seen", len(pins))
	}
}

// named matches the steps in the document: "1. **Name**".
var named = regexp.MustCompile(`(?m)^\d+\. \*\*([^*]+)\*\*`)

// TestWorkflowMatchesDocument requires that docs/releasing.md lists steps of the workflow in order, including signing,
// attesting and rebuilding.
func TestWorkflowMatchesDocument(t *testing.T) {
	var w workflow
	parse(t, workflowFile, &w)
	page := read(t, "docs/releasing.md")
	release, reproduce, ok := strings.Cut(page, "The job `reproduce`")
	if !ok {
		t.Fatal("the document does not describe the job reproduce")
	}
	for name, text := range map[string]string{"release": release, "reproduce": reproduce} {
		last := -1
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			i := slices.IndexFunc(w.Jobs[name].Steps, func(s step) bool { return s.Name == m[1] })
			if i <= last {
				t.Errorf("job %s: the step %q is at %d, and the one before at %d", name, m[1], i, last)
			}
			last = i
		}
		if last < 0 {
			t.Errorf("the document names no step of the job %s", name)
		}
	}
	for step, want := range map[string]string{
		"Check versions and bases": "scripts/release-check",
		"Push and sign the chart":  "cosign sign --yes",
		"Build again and compare":  "scripts/reproduce",
	} {
		if s := find(t, w, step); !strings.Contains(s.Run, want) || !strings.Contains(page, "**"+step+"**") {
			t.Errorf("the step %q does not run %s, or the document does not name it", step, want)
		}
	}
	for step, want := range map[string]string{
		"Build, sign and draft":                        "goreleaser/goreleaser-action",
		"Attest the provenance of the archives":        "actions/attest-build-provenance",
		"Attest the provenance of the image":           "actions/attest-build-provenance",
		"Attest the provenance of the chart":           "actions/attest-build-provenance",
		"Attest the bill of materials of the archives": "actions/attest",
		"Attest the bill of materials of the image":    "actions/attest",
	} {
		if s := find(t, w, step); !strings.HasPrefix(s.Uses.Value, want+"@") || !strings.Contains(page, "**"+step+"**") {
			t.Errorf("the step %q does not use %s, or the document does not name it", step, want)
		}
	}
	for _, name := range []string{"Attest the bill of materials of the archives", "Attest the bill of materials of the image"} {
		if find(t, w, name).With["sbom-path"] == "" { // otherwise the action would attest provenance a second time
			t.Errorf("the step %q has no bill of materials", name)
		}
	}
	if find(t, w, "Build, sign and draft").With["args"] != "release --clean" || w.Jobs["reproduce"].Needs != "release" {
		t.Error("the release is not made by goreleaser, or is not rebuilt afterwards")
	}
	if !strings.Contains(page, workflowFile+"@refs/tags/") {
		t.Errorf("the document does not verify the identity of %s", workflowFile)
	}
}

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

// TestSigning requires that .goreleaser.yaml signs checksums and images without a key, and creates a bill of materials
// for every program.
func TestSigning(t *testing.T) {
	var c struct {
		Signs, DockerSigns []struct {
			Cmd, Artifacts string
			Args           []string
		}
		Sboms   []struct{ Artifacts string }
		Release struct{ Draft bool }
	}
	var raw map[string]any
	parse(t, ".goreleaser.yaml", &raw)
	raw["dockersigns"] = raw["docker_signs"]
	b, err := yaml.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Signs) != 1 || len(c.DockerSigns) != 1 || c.Signs[0].Artifacts != "checksum" || c.DockerSigns[0].Artifacts != "manifests" {
		t.Errorf("signed are %v and %v", c.Signs, c.DockerSigns)
	}
	for _, s := range slices.Concat(c.Signs, c.DockerSigns) {
		if s.Cmd != "cosign" || slices.ContainsFunc(s.Args, func(a string) bool { return strings.HasPrefix(a, "--key") }) {
			t.Errorf("signed by %s %v, want cosign without a key", s.Cmd, s.Args)
		}
	}
	if len(c.Sboms) != 1 || c.Sboms[0].Artifacts != "binary" || !c.Release.Draft {
		t.Errorf("bills of materials are made of %v; a draft: %v", c.Sboms, c.Release.Draft)
	}
}
