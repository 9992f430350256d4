// Package migrate plans the migration of an envoyproxy/ratelimit deployment to Keyward. [ParseManifest] and
// [ParseEnvFile] read its environment and rules. [Deployment.Plan] reports what stays the same, what is no longer
// needed and what differs, with the steps to migrate and to go back. [Manifest.Patched] and [Deployment.Values] return
// the new manifest and chart values.
package migrate

import (
	"fmt"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/rulecheck"
)

// Deployment describes an envoyproxy/ratelimit deployment.
type Deployment struct {
	Env      Env
	Rules    []config.File
	RulesDir string    // the folder they were read from; may be empty
	Manifest *Manifest // nil if none was given
	File     string    // its file name
	EnvFile  string    // name of the file with the environment; empty if none was given
	Replicas int       // the number to deploy
	Image    string    // of Keyward
}

// MigrationPlan is the result of Plan. Fields are only ever added.
type MigrationPlan struct {
	Workload    string            `json:"workload,omitempty"`
	OldImage    string            `json:"old_image,omitempty"`
	Image       string            `json:"image"`
	Replicas    int               `json:"replicas"`
	Variables   []VariableOutcome `json:"variables"`
	Rules       RulesSummary      `json:"rules"`
	Differences []KnownDifference `json:"differences"`
	Steps       []MigrationStep   `json:"steps"`
}

// RulesSummary summarizes the rules files.
type RulesSummary struct {
	Files    int      `json:"files"`
	Domains  []string `json:"domains"`
	Rules    int      `json:"rules"`
	Faults   []string `json:"faults"`
	Warnings []string `json:"warnings"`
}

// KnownDifference is an entry of docs/differences.md that concerns this deployment.
type KnownDifference struct {
	Concerns string `json:"concerns"` // the variable or rule that it is about
	Text     string `json:"text"`
}

// MigrationStep is one step of the migration, with the step back.
type MigrationStep struct {
	Title string   `json:"title"`
	Do    []string `json:"do"`   // shell commands; comments describe what a shell cannot do
	Back  []string `json:"back"` // shell commands that undo it
}

// Plan returns the migration plan of d. If all is set, it lists every variable of envoyproxy/ratelimit, not only those
// that are set.
func (d *Deployment) Plan(all bool) *MigrationPlan {
	r := &MigrationPlan{Image: d.Image, Replicas: d.Replicas, Variables: d.Env.Variables(all)}
	if d.Manifest != nil {
		r.Workload, r.OldImage = d.Manifest.Workload, d.Manifest.Image
	}
	rules := d.rules(&r.Rules)
	r.Differences = append(d.differences(), ruleDifferences(rules)...)
	r.Steps = d.steps()
	return r
}

// rules loads the rules as the service would. It returns nil if they have faults.
func (d *Deployment) rules(to *RulesSummary) *config.Rules {
	to.Files, to.Domains, to.Faults, to.Warnings = len(d.Rules), []string{}, []string{}, []string{}
	found := config.Check(d.Rules, config.Options{MergeDomains: d.Env.on("MERGE_DOMAIN_CONFIG"), Members: d.Replicas})
	for _, f := range found.Faults {
		to.Faults = append(to.Faults, f.Error())
	}
	if found.Rules == nil || len(found.Faults) > 0 {
		return nil
	}
	to.Domains, to.Rules = found.Rules.Domains(), len(found.Rules.Rules())
	for _, s := range rulecheck.Warnings(d.Rules, found.Rules, 0) {
		to.Warnings = append(to.Warnings, s.String())
	}
	return found.Rules
}

// differences returns the entries of docs/differences.md that concern this environment.
func (d *Deployment) differences() []KnownDifference {
	e := d.Env
	list := []KnownDifference{
		{"every deployment", "Counters are in the members' memory, and with --data DIR those of limits of an hour and more also " +
			"in journals on disk. Without --data, all counters are lost if all members stop at once. A single member that stops hands off " +
			"its counters."},
		{"every deployment", "If the owner of a key does not answer in time, the rule's degraded policy decides (by " +
			"default with this member's share of the limit), instead of an error with which Envoy admits the request."},
	}
	if d.Manifest != nil && d.Manifest.Workload != "" {
		list = append(list,
			KnownDifference{"the change of the image", "During the rolling update some pods count in the store and some in " +
				"Keyward, so a key may get up to twice its limit in the windows of that time. The mirror avoids this."})
	}
	add := func(is bool, concerns, text string) {
		if is {
			list = append(list, KnownDifference{concerns, text})
		}
	}
	backend, _ := e.get("BACKEND_TYPE")
	statsd, statsdSet := e.get("USE_STATSD")
	tags, _ := e.get("EXTRA_TAGS")
	add(backend == "memcache", "BACKEND_TYPE=memcache",
		"With memcached, the service counts after it responds, so it admits more than the limit under load. Keyward does "+
			"not: expect more denied requests for busy keys.")
	add(e.above("LOCAL_CACHE_SIZE_IN_BYTES"), "LOCAL_CACHE_SIZE_IN_BYTES",
		"Keys over their limit are cached only on members that do not own them, and dropped when a limit is raised, hits "+
			"are refunded or ownership moves.")
	add(e.on("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"), "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
		"This is exact if one member owns all keys of a call. With several owners there is the same gap between check and "+
			"charge as with Redis.")
	add(tags != "" && e.on("USE_PROMETHEUS"), "EXTRA_TAGS",
		"In Prometheus they become labels. In envoyproxy/ratelimit they become part of the names, which then match no "+
			"mapping.")
	add(!statsdSet && (e.on("USE_PROMETHEUS") || e.on("USE_DOG_STATSD")), "USE_STATSD",
		"It is true by default, but with USE_PROMETHEUS or USE_DOG_STATSD it applies only if it is set.")
	add(statsd != "false" && !e.on("USE_PROMETHEUS") && !e.on("USE_DOG_STATSD"), "USE_STATSD",
		"/metrics is always served in addition to statsd.")
	add(e.on("REDIS_PERSECOND"), "REDIS_PERSECOND", "Per-second limits do not need a separate store.")
	add(e.on("MERGE_DOMAIN_CONFIG"), "MERGE_DOMAIN_CONFIG",
		"Wildcards of one level in several files are matched in the order of the file names, which does not change between "+
			"loads.")
	add(e.on("TRACING_ENABLED"), "TRACING_ENABLED", "See the note on TRACING_* in docs/environment.md.")
	if d.Replicas == 1 {
		list = append(list,
			KnownDifference{"one replica", "It counts alone. During a rolling update the old and the new pod count " +
				"separately: use the strategy Recreate, or two replicas in one cluster."})
	}
	return list
}

// ruleDifferences returns the entries that concern the rules.
func ruleDifferences(rules *config.Rules) []KnownDifference {
	var list []KnownDifference
	if rules == nil {
		return nil
	}
	for _, r := range rules.Rules() {
		if r.Limit.Window > 24*time.Hour && !r.Unlimited {
			list = append(list,
				KnownDifference{r.FullKey, fmt.Sprintf("It counts per %s: run members with --data DIR, or a restart of all of "+
					"them at once resets it.", strings.ToLower(r.Unit.String()))})
		}
		if r.DetailedMetric || r.ValueToMetric {
			list = append(list,
				KnownDifference{r.FullKey, "Its statistics have a series for each value. At most 10,000 such series are kept; " +
					"the other values of a domain share one."})
		}
	}
	return list
}

// chartValues are values of charts/keyward.
type chartValues struct {
	Mode         string            `yaml:"mode"`
	ReplicaCount int               `yaml:"replicaCount"`
	Environment  map[string]string `yaml:"environment,omitempty"`
	ExtraEnv     []yaml.Node       `yaml:"extraEnv,omitempty"`
	Rules        map[string]string `yaml:"rules,omitempty"`
	Network      networkPolicy     `yaml:"networkPolicy"`
}

// Values returns a values.yaml for charts/keyward. The chart sets the variables for the rules folder and the ports.
// Variables from Secrets become extraEnv.
func (d *Deployment) Values() ([]byte, error) {
	v := chartValues{
		Mode: "deployment", ReplicaCount: d.Replicas, Network: d.policy(),
		Environment: map[string]string{}, Rules: map[string]string{},
	}
	for _, x := range d.Env.Variables(false) {
		value, _ := d.Env.get(x.Name)
		if x.Fate != native && x.Fate != own || chartSets(x.Name) {
			continue
		}
		if ref := d.reference(x.Name); ref != nil {
			v.ExtraEnv = append(v.ExtraEnv, *ref)
			continue
		}
		v.Environment[x.Name] = value
	}
	if _, set := d.Env.get("USE_STATSD"); !set && !d.Env.on("USE_PROMETHEUS") && !d.Env.on("USE_DOG_STATSD") {
		v.Environment["USE_STATSD"] = "true" // its default in envoyproxy/ratelimit, but not in the chart
	}
	for _, f := range d.Rules {
		v.Rules[f.Name[strings.LastIndexByte(f.Name, '/')+1:]] = string(f.Content)
	}
	return yaml.Marshal(v)
}

// reference returns the container's entry of a variable whose value was not read, such as one from a Secret.
func (d *Deployment) reference(name string) *yaml.Node {
	if d.Manifest == nil {
		return nil
	}
	for _, v := range items(at(d.Manifest.container, "env")) {
		if value, _ := d.Env.get(name); text(at(v, "name")) == name && at(v, "valueFrom") != nil && value == "" {
			return v
		}
	}
	return nil
}

// chartSets reports whether the chart sets a variable.
func chartSets(name string) bool {
	switch name {
	case "HOST", "PORT", "DEBUG_HOST", "DEBUG_PORT", "GRPC_HOST", "GRPC_PORT", "GRPC_UDS", "PROMETHEUS_ADDR",
		"POD_NAME", "POD_IP", "POD_UID":
		return true
	}
	for _, prefix := range []string{
		"RUNTIME_", "GRPC_SERVER_TLS_", "GRPC_CLIENT_TLS_", "GRPC_SERVER_USE_TLS",
		"KEYWARD_JOIN", "KEYWARD_TLS_", "KEYWARD_GOSSIP_", "KEYWARD_EXPECT",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
