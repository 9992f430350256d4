package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	buildType     = "https://actions.github.io/buildtypes/workflow/v1"
	workflowPath  = ".github/workflows/release.yml"
)

// statement is an in-toto statement: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     predicate `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// predicate is SLSA's: https://slsa.dev/spec/v1.0/provenance
type predicate struct {
	BuildDefinition struct {
		BuildType            string         `json:"buildType"`
		ExternalParameters   map[string]any `json:"externalParameters"`
		InternalParameters   map[string]any `json:"internalParameters"`
		ResolvedDependencies []dependency   `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder  map[string]string `json:"builder"`
		Metadata map[string]string `json:"metadata"`
	} `json:"runDetails"`
}

type dependency struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

// provenance writes the statement about everything that build has made, and its predicate by itself, for programs that
// sign it together with subjects of their own.
func provenance(_ context.Context, o options) error {
	r, err := load(o)
	if err != nil {
		return err
	}
	s := statement{Type: statementType, PredicateType: predicateType, Predicate: r.predicate(os.Getenv)}
	if s.Subject, err = r.subjects(); err != nil {
		return err
	}
	for name, what := range map[string]any{"provenance.intoto.json": s, "provenance.predicate.json": s.Predicate} {
		text, err := json.MarshalIndent(what, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.out, name), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// subjects are the files of checksums.txt, that file itself, and all images and charts.
func (r *release) subjects() ([]subject, error) {
	text, err := os.ReadFile(r.files("checksums.txt"))
	if err != nil {
		return nil, err
	}
	all := []subject{{"checksums.txt", map[string]string{"sha256": sum(text)}}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		digest, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			return nil, fmt.Errorf("checksums.txt: %q", lines.Text())
		}
		all = append(all, subject{name, map[string]string{"sha256": digest}})
	}
	for _, name := range sortedKeys(r.Digests) {
		all = append(all, subject{defaultRegistry + "/" + name, map[string]string{"sha256": strings.TrimPrefix(r.Digests[name], "sha256:")}})
	}
	return all, lines.Err()
}

// predicate says what was built, from what, and by whom. In GitHub Actions it has the values that GitHub's own
// generator writes. Elsewhere the builder is the dry run.
func (r *release) predicate(getenv func(string) string) (p predicate) {
	ref := "refs/tags/" + r.Tag
	d := &p.BuildDefinition
	d.BuildType = buildType
	d.ExternalParameters = map[string]any{"workflow": map[string]string{"ref": ref, "repository": source, "path": workflowPath}}
	d.InternalParameters = map[string]any{"go": r.Go, "dryRun": r.DryRun}
	d.ResolvedDependencies = []dependency{
		{"git+" + source + "@" + ref, map[string]string{"gitCommit": r.Commit}},
		{"pkg:golang/toolchain@" + r.Go, nil},
	}
	p.RunDetails.Builder = map[string]string{"id": source + "/blob/main/docs/releasing.md#dry-run"}
	p.RunDetails.Metadata = map[string]string{}
	if getenv("GITHUB_ACTIONS") != "true" {
		return p
	}
	d.InternalParameters["github"] = map[string]string{
		"event_name": getenv("GITHUB_EVENT_NAME"), "repository_id": getenv("GITHUB_REPOSITORY_ID"),
		"repository_owner_id": getenv("GITHUB_REPOSITORY_OWNER_ID"), "runner_environment": getenv("RUNNER_ENVIRONMENT"),
	}
	server := getenv("GITHUB_SERVER_URL") + "/"
	p.RunDetails.Builder["id"] = server + getenv("GITHUB_WORKFLOW_REF")
	p.RunDetails.Metadata["invocationId"] = fmt.Sprintf("%s%s/actions/runs/%s/attempts/%s", server, getenv("GITHUB_REPOSITORY"), getenv("GITHUB_RUN_ID"), getenv("GITHUB_RUN_ATTEMPT"))
	return p
}
