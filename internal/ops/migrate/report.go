// Package migrate says what becomes of an envoyproxy/ratelimit deployment: its environment and rules are read as they are
// ([ParseManifest], [ParseEnvFile]), [Deployment.Plan] tells what means the same, what goes away and what differs, with
// the steps there and back, and [Manifest.Patched] and [Deployment.Values] are the files that take its place.
package migrate

import (
	"fmt"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/rulecheck"
)

// Deployment is all that is known of an envoyproxy/ratelimit deployment.
type Deployment struct {
	Env      Env
	Rules    []config.File
	RulesDir string    // where they were read; empty: not from a folder
	Manifest *Manifest // nil: none was given
	File     string    // its name
	EnvFile  string    // name of the file with the environment; empty: none was given
	Replicas int       // that there are to be
	Image    string    // Keyward's
}

// MigrationPlan is what becomes of a deployment. Fields are only ever added.
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

// RulesSummary is what the rules' files hold.
type RulesSummary struct {
	Files    int      `json:"files"`
	Domains  []string `json:"domains"`
	Rules    int      `json:"rules"`
	Faults   []string `json:"faults"`
	Warnings []string `json:"warnings"`
}

// KnownDifference is one of docs/differences.md that concerns this deployment.
type KnownDifference struct {
	Concerns string `json:"concerns"` // the variable or the rule for which it does
	Text     string `json:"text"`
}

// MigrationStep is one step of the way, with the way back.
type MigrationStep struct {
	Title string   `json:"title"`
	Do    []string `json:"do"`   // lines for a shell; those that begin with # say what a shell cannot do
	Back  []string `json:"back"` // the same, to undo it
}

// Plan says what becomes of d. With all, every variable of envoyproxy/ratelimit is listed, and not only those that are set.
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

// rules loads the rules as the service would.
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
	for _, s := range rulecheck.Warnings(d.Rules, found.Rules) {
		to.Warnings = append(to.Warnings, s.String())
	}
	return found.Rules
}

// differences are those of docs/differences.md that this environment meets.
func (d *Deployment) differences() []KnownDifference {
	e := d.Env
	list := []KnownDifference{
		{"every deployment", "Counts live in the members' memory. When all members stop at once, all counts begin anew; one that stops hands its counts over."},
		{"every deployment", "Where the owner of a key does not answer in time, the rule's degraded policy answers (by default from this member's share of the limit), instead of an error that Envoy lets through."},
	}
	if d.Manifest != nil && d.Manifest.Workload != "" {
		list = append(list, KnownDifference{"the change of the image", "While pods are exchanged, some count in the store and some in Keyward: in the windows of that time a key may get up to twice its limit. The mirror avoids that."})
	}
	add := func(is bool, concerns, text string) {
		if is {
			list = append(list, KnownDifference{concerns, text})
		}
	}
	backend, _ := e.get("BACKEND_TYPE")
	statsd, statsdSet := e.get("USE_STATSD")
	tags, _ := e.get("EXTRA_TAGS")
	add(backend == "memcache", "BACKEND_TYPE=memcache", "memcached counts after the answer, so it admits more than the limit under load. Keyward does not: expect more refusals of busy keys.")
	add(e.above("LOCAL_CACHE_SIZE_IN_BYTES"), "LOCAL_CACHE_SIZE_IN_BYTES", "Keys that are over are remembered only on members that do not own them, and forgotten when a limit is raised, hits are given back or ownership moves.")
	add(e.on("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"), "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "Exact when one member owns all keys of a request; over several owners there is the same gap between look and charge as with Redis.")
	add(tags != "" && e.on("USE_PROMETHEUS"), "EXTRA_TAGS", "In Prometheus they become labels; in envoyproxy/ratelimit they become part of the names, which no mapping matches any more.")
	add(!statsdSet && (e.on("USE_PROMETHEUS") || e.on("USE_DOG_STATSD")), "USE_STATSD", "It is true by default, but beside USE_PROMETHEUS or USE_DOG_STATSD it counts only if it is set.")
	add(statsd != "false" && !e.on("USE_PROMETHEUS") && !e.on("USE_DOG_STATSD"), "USE_STATSD", "/metrics is served beside statsd in any case.")
	add(e.on("REDIS_PERSECOND"), "REDIS_PERSECOND", "Limits a second need no store of their own.")
	add(e.on("MERGE_DOMAIN_CONFIG"), "MERGE_DOMAIN_CONFIG", "Wildcards of one level in several files are tried in the order of the files' names, not in one that changes with every load.")
	add(e.on("TRACING_ENABLED"), "TRACING_ENABLED", "See the note of TRACING_* in docs/environment.md.")
	if d.Replicas == 1 {
		list = append(list, KnownDifference{"one replica", "It counts alone. While a rolling update has the old and the new pod at once, each counts for itself: use strategy Recreate, or two replicas that know each other."})
	}
	return list
}

// ruleDifferences are those that the rules meet.
func ruleDifferences(rules *config.Rules) []KnownDifference {
	var list []KnownDifference
	if rules == nil {
		return nil
	}
	for _, r := range rules.Rules() {
		if r.Limit.Window > 24*time.Hour && !r.Unlimited {
			list = append(list, KnownDifference{r.FullKey, fmt.Sprintf("It counts by the %s, in memory only: a restart of all members at once begins it anew.", strings.ToLower(r.Unit.String()))})
		}
		if r.DetailedMetric || r.ValueToMetric {
			list = append(list, KnownDifference{r.FullKey, "Its statistics have a series for each value. At most 10,000 such series are kept; the rest of a domain shares one."})
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

// Values is a values.yaml for charts/keyward. Variables that say where rules are and which ports are served are left to the
// chart; those that come from Secrets become extraEnv.
func (d *Deployment) Values() ([]byte, error) {
	v := chartValues{Mode: "deployment", ReplicaCount: d.Replicas, Environment: map[string]string{}, Rules: map[string]string{}, Network: d.policy()}
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
		v.Environment["USE_STATSD"] = "true" // its default there, and not the chart's
	}
	for _, f := range d.Rules {
		v.Rules[f.Name[strings.LastIndexByte(f.Name, '/')+1:]] = string(f.Content)
	}
	return yaml.Marshal(v)
}

// reference is the container's own line of a variable whose value is somewhere that was not read.
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

// chartSets says that a variable is the chart's business.
func chartSets(name string) bool {
	switch name {
	case "HOST", "PORT", "DEBUG_HOST", "DEBUG_PORT", "GRPC_HOST", "GRPC_PORT", "GRPC_UDS", "PROMETHEUS_ADDR", "POD_NAME", "POD_IP", "POD_UID":
		return true
	}
	for _, prefix := range []string{"RUNTIME_", "GRPC_SERVER_TLS_", "GRPC_CLIENT_TLS_", "GRPC_SERVER_USE_TLS", "KEYWARD_JOIN", "KEYWARD_TLS_", "KEYWARD_GOSSIP_", "KEYWARD_EXPECT"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
