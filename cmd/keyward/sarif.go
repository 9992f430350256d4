package main

import (
	"io"
	"net/url"
	"path/filepath"
	"slices"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/envoycheck"
	"github.com/keyward/keyward/internal/ops/rulecheck"
)

// The parts of SARIF 2.1.0 (OASIS) that a check uses.
type (
	sarifLog struct {
		Version string     `json:"version"`
		Schema  string     `json:"$schema"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		URI     string      `json:"informationUri"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID   string    `json:"id"`
		Text sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		Rule      string          `json:"ruleId"`
		Index     int             `json:"ruleIndex"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		Line   int `json:"startLine"`
		Column int `json:"startColumn,omitempty"`
	}
)

// sarifRules returns all kinds of findings.
func sarifRules() []sarifRule {
	rule := func(id, text string) sarifRule { return sarifRule{id, sarifText{text}} }
	return []sarifRule{
		rule(config.BadYAML, "The file is not the YAML of rate-limit rules."),
		rule(config.BadRules, "The rules contradict themselves or each other."),
		rule(config.BadExtension, "metadata.keyward is not valid."),
		rule("ignored-document", "Only the first YAML document of a file is loaded."),
		rule("no-rules", "No rule limits a request."),
		rule("misplaced-key", "The key has no effect in this mapping: it belongs to another level."),
		rule("duplicate-key", "The key occurs twice in the same mapping."),
		rule("unreachable", "No request reaches this descriptor."),
		rule("no-effect", "This has no effect."),
		rule("refuses-all", "Every request is over the limit."),
		rule("long-window", "The window is so long that a restart of all members loses many counts."),
		rule("not-in-journal", "The counts of a long window are not in the members' journals."),
		rule("strict-waits", "Each charge waits for the disk."),
		rule("short-window", "The window is too short for members whose clocks differ."),
		rule("one-owner", "One member counts all requests of a busy rule."),
		rule("nothing-to-lend", "The limit is too small for leases."),
		rule("short-ttl", "A lease ends before its holder has renewed it twice."),
		rule("small-quota", "The limit is too small for the number of Envoys that spend it."),
		rule("slow-quota", "The limit is too slow for Envoys that spend it."),
		rule("quota-outage", "Envoys whose sidecar is away do not do what the rule seems to say."),
		rule("quota-replaced", "Another rule replaces a limit that Envoys spend."),
		rule("quota-and-calls", "Calls count the requests of a limit that Envoys spend."),
		rule("never-switches", "The keys stay with calls when they are hot."),
		rule("first-allow", "Requests before the first assignment are admitted above the limit."),
		rule(envoycheck.BadFile, "The file is not valid YAML or JSON."),
		rule(envoycheck.EndsEnvoy, "Envoy ends, or refuses what it should admit."),
		rule(envoycheck.Ignored, "Envoy ignores the field."),
		rule(envoycheck.Rejected, "Envoy rejects the configuration."),
		rule(envoycheck.Unbounded, "Envoy admits everything while the sidecar is away."),
		rule(envoycheck.CountedTwice, "Each request counts twice in one limit."),
		rule(envoycheck.Costs, "The limit counts requests, not costs."),
		rule(envoycheck.SeveralRules, "Several filters count the same request."),
		rule(envoycheck.NoRule, "The bucket has no limit that is assigned."),
		rule("replaces-nothing", "No rule has the name that this rule replaces."),
		rule(rulecheck.RuleAdded, "A new rule."),
		rule(rulecheck.RuleRemoved, "A removed rule."),
		rule(rulecheck.NewAmount, "A changed amount, which applies to the existing counts."),
		rule(rulecheck.CountsReset, "New counters start in the middle of their windows."),
		rule(rulecheck.NewWay, "The limit is the same; enforcement, durability or the degraded policy differ."),
	}
}

func writeSARIF(out io.Writer, r *checkReport) error {
	rules := sarifRules()
	run := sarifRun{ColumnKind: "unicodeCodePoints", Results: []sarifResult{}, Tool: sarifTool{sarifDriver{
		Name: "keyward check", Version: version, URI: "https://github.com/keyward/keyward", Rules: rules,
	}}}
	add := func(level string, findings []config.Diagnostic) {
		for _, f := range findings {
			text := f.Text
			if f.Hint != "" {
				text += " (" + f.Hint + ")"
			}
			if level == "note" && f.Kind == rulecheck.CountsReset {
				level = "warning"
			}
			at := sarifPhysical{Artifact: sarifArtifact{fileURI(f.File)}}
			if f.Line > 0 {
				at.Region = &sarifRegion{f.Line, f.Column}
			}
			index := slices.IndexFunc(rules, func(r sarifRule) bool { return r.ID == f.Kind })
			run.Results = append(run.Results, sarifResult{f.Kind, index, level, sarifText{text}, []sarifLocation{{at}}})
		}
	}
	add("error", r.Faults)
	add("warning", r.Warnings)
	for _, c := range r.Changes {
		add("note", []config.Diagnostic{c})
	}
	log := sarifLog{"2.1.0", "https://json.schemastore.org/sarif-2.1.0.json", []sarifRun{run}}
	return show(out, "json", log, nil)
}

// fileURI returns the URI of a file. Relative ones are relative to the working directory of the command.
func fileURI(path string) string {
	u := url.URL{Path: filepath.ToSlash(path)}
	if filepath.IsAbs(path) {
		u.Scheme = "file"
	}
	return u.String()
}
