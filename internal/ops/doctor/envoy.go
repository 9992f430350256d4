package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EnvoyPages is one Envoy's admin pages.
type EnvoyPages struct {
	Address    string
	ServerInfo []byte // /server_info
	ConfigDump []byte // /config_dump?include_eds
	Clusters   []byte // /clusters?format=json
	Stats      []byte // /stats?filter=ratelimit, text
	Err        error
}

// object is a JSON object of Envoy's.
type object = map[string]any

func examineEnvoy(f *Snapshot, e *EnvoyPages, r *report) {
	if e.Err != nil {
		r.fail("name Envoy's admin page, often 127.0.0.1:9901 or :15000, reachable from here", "%s does not answer: %v", e.Address, e.Err)
		return
	}
	var dump any
	if err := json.Unmarshal(e.ConfigDump, &dump); err != nil {
		r.fail("", "%s: read its configuration: %v", e.Address, err)
		return
	}
	filters := find(dump, "envoy.extensions.filters.http.ratelimit.v3.RateLimit")
	if len(filters) == 0 {
		r.fail("print one: `keyward envoy-config --part filter --rules DIR`", "%s has no rate-limit filter", e.Address)
		return
	}
	names := map[string]bool{}
	for _, filter := range filters {
		examineFilter(f, e, filter, r)
		names[text(filter, "rate_limit_service", "grpc_service", "envoy_grpc", "cluster_name")] = true
	}
	for _, c := range find(dump, "envoy.config.cluster.v3.Cluster") {
		if names[text(c, "name")] {
			examineCluster(e, c, r)
		}
	}
	for name := range names {
		examineHosts(f, e, name, r)
	}
	errors := e.stat(".ratelimit.error")
	if asked := errors + e.stat(".ratelimit.ok") + e.stat(".ratelimit.over_limit"); errors > 0 && errors > asked/1000 {
		r.warn("requests passed uncounted, or were refused with failure_mode_deny: see timeout, retries and hosts above", "%s: %.0f of %.0f questions failed", e.Address, errors, asked)
	}
	if !slices.ContainsFunc(r.findings, func(x Finding) bool { return x.Check == r.check && strings.HasPrefix(x.Text, e.Address) }) {
		r.ok("%s asks owners directly, and their heirs when they are silent", e.Address)
	}
}

// examineFilter judges timeouts, retries and what happens when no answer comes.
func examineFilter(f *Snapshot, e *EnvoyPages, filter object, r *report) {
	timeout := duration(filter, 20*time.Millisecond, "timeout")
	domain := text(filter, "domain")
	say := func(level Severity, advice, format string, args ...any) {
		r.add(level, advice, "%s, filter of domain %s: %s", e.Address, domain, fmt.Sprintf(format, args...))
	}
	decision := decisionTimeout(f)
	if !e.tellsTimeout() && decision > 0 && timeout <= decision {
		say(Fail, fmt.Sprintf("set the filter's timeout well above --decision-timeout (%v), 0.1s is good; Envoy from 1.40 on tells its own, and members then use 60 %% of it", decision),
			"its timeout of %v is over before a member gives its degraded answer after %v", timeout, decision)
	} else if timeout < 50*time.Millisecond {
		say(Warn, "set timeout: 0.1s: it is for all tries together", "its timeout of %v leaves no time to ask the heir of an owner that is silent", timeout)
	}
	if deny, _ := filter["failure_mode_deny"].(bool); !deny {
		say(Warn, "decide: true refuses requests whose question failed; false (as here) lets them pass uncounted. With retries to the heir there are hardly any", "failure_mode_deny is off")
	}
	if domains := f.domains(); len(domains) > 0 && !slices.Contains(domains, domain) {
		say(Fail, "use the same word in the filter's domain and in the rules'", "no rules have this domain; there are rules for %s", strings.Join(domains, ", "))
	}
	service, _ := dig(filter, "rate_limit_service", "grpc_service").(object)
	if text(service, "envoy_grpc", "cluster_name") == "" {
		return
	}
	if !sendsKey(service) {
		say(Warn, "add initial_metadata x-keyward-key to its grpc_service, as `keyward envoy-config` prints it", "it sends no x-keyward-key: any member is asked, and forwards")
		return
	}
	if text(service, "envoy_grpc", "retry_policy", "retry_on") != "" {
		say(Warn, "move it up to grpc_service.retry_policy", "envoy_grpc.retry_policy is ignored by this filter")
	}
	retries, _ := dig(service, "retry_policy").(object)
	examineRetries(retries, timeout, say)
}

// examineRetries holds what decision 24 of the design measured: a silent owner costs no question.
func examineRetries(retries object, timeout time.Duration, say func(level Severity, advice, format string, args ...any)) {
	const advice = "copy grpc_service.retry_policy from `keyward envoy-config`: reset,connect-failure,refused-stream, max_interval 0.04s, previous_hosts"
	on := strings.Split(text(retries, "retry_on"), ",")
	interval := duration(retries, 0, "retry_back_off", "max_interval")
	hosts, _ := retries["retry_host_predicate"].([]any)
	switch {
	case retries == nil:
		say(Fail, advice, "no retries: while an owner is silent or gone, questions about its keys fail")
	case !slices.Contains(on, "reset"):
		say(Fail, advice, "it retries on %s only: an owner that is silent, not gone, fails every question about its keys", strings.Join(on, ", "))
	case !slices.Contains(on, "connect-failure"):
		say(Warn, advice, "it does not retry on connect-failure: an owner that is gone fails questions until Envoy hears of it")
	case interval == 0 || interval >= timeout:
		say(Fail, advice, "retry_back_off.max_interval, the time of one try, is %v in a timeout of %v: the heir is never asked", interval, timeout)
	case len(hosts) == 0:
		say(Warn, advice, "no previous_hosts predicate: the retry may ask the silent owner again")
	}
}

func examineCluster(e *EnvoyPages, c object, r *report) {
	name := text(c, "name")
	say := func(level Severity, advice, format string, args ...any) {
		r.add(level, advice, "%s, cluster %s: %s", e.Address, name, fmt.Sprintf(format, args...))
	}
	policy := cmp.Or(text(c, "lb_policy"), "ROUND_ROBIN")
	if policies, ok := dig(c, "load_balancing_policy", "policies").([]any); ok && len(policies) > 0 {
		policy = text(policies[0], "typed_extension_config", "name")
	}
	if !strings.Contains(strings.ToLower(policy), "ring_hash") {
		say(Warn, "for owner-direct take the cluster from Keyward's xDS, or from `keyward envoy-config --part cluster`; in the shape plain nothing is to be done", "its policy is %s: any member is asked, and forwards", policy)
		return
	}
	if c["outlier_detection"] != nil {
		say(Warn, "remove outlier_detection: a member that is ejected is still the owner for all others, and its keys are then counted twice as slowly as they should", "it ejects hosts by itself")
	}
	if checks, ok := c["health_checks"].([]any); ok && len(checks) > 0 {
		say(Warn, "remove health_checks: EDS says which members live, to all Envoys alike", "it checks hosts' health by itself: its ring may differ from the others'")
	}
	if text(c, "common_lb_config", "healthy_panic_threshold", "value") != "" && text(c, "common_lb_config", "healthy_panic_threshold", "value") != "0" {
		say(Warn, "set healthy_panic_threshold to 0, as `keyward envoy-config --part cluster` does", "it panics, and then asks hosts that are gone")
	}
}

// clusterStatuses is /clusters?format=json, as far as a finding is made of it.
type clusterStatuses struct {
	Clusters []clusterStatus `json:"cluster_statuses"`
}

type clusterStatus struct {
	Name  string       `json:"name"`
	Hosts []hostStatus `json:"host_statuses"`
}

type hostStatus struct {
	Address struct {
		Socket struct {
			Address string `json:"address"`
			Port    int    `json:"port_value"`
		} `json:"socket_address"`
	} `json:"address"`
	Locality struct {
		Region string `json:"region"`
	} `json:"locality"`
}

// examineHosts holds that Envoy's endpoints are the members on the ring.
func examineHosts(f *Snapshot, e *EnvoyPages, name string, r *report) {
	var all clusterStatuses
	if err := json.Unmarshal(e.Clusters, &all); err != nil {
		r.fail("", "%s: read its clusters: %v", e.Address, err)
		return
	}
	i := slices.IndexFunc(all.Clusters, func(c clusterStatus) bool { return c.Name == name })
	if i < 0 {
		r.fail("add the cluster, or take clusters from Keyward's xDS and see `keyward xds status`", "%s has no cluster %s, which its filter asks", e.Address, name)
		return
	}
	asked := map[string]bool{}
	for _, h := range all.Clusters[i].Hosts {
		if h.Locality.Region != "void" { // the place that nobody has
			asked[net.JoinHostPort(h.Address.Socket.Address, strconv.Itoa(h.Address.Socket.Port))] = true
		}
	}
	members := f.directly()
	if len(members) == 0 || len(asked) == 1 {
		return // it asks a sidecar, or a Service, which forwards
	}
	for _, at := range slices.Sorted(maps.Keys(members)) {
		if !asked[at] {
			r.fail("see `keyward xds status`; endpoints that are listed by hand must be all members", "%s, cluster %s: it does not know %s at %s: its ring is another than the members'", e.Address, name, members[at], at)
		}
		delete(asked, at)
	}
	for _, at := range slices.Sorted(maps.Keys(asked)) {
		r.fail("see `keyward xds status`; endpoints that are listed by hand must be members", "%s, cluster %s: it asks %s, which is no member on the ring", e.Address, name, at)
	}
}

// directly is where Envoys ask the members on the ring, by address; what two of them tell differently is left out.
func (f *Snapshot) directly() map[string]string {
	at := map[string]string{}
	for _, m := range f.counters() {
		for _, x := range m.Cluster.Members {
			if x.Role == "member" && x.RLS != "" && slices.Contains(m.Cluster.Ring.Members, x.ID) {
				at[x.RLS] = x.ID
			}
		}
	}
	return at
}

// find lists the objects of a type anywhere in v.
func find(v any, of string) (all []object) {
	switch v := v.(type) {
	case object:
		if t, _ := v["@type"].(string); strings.HasSuffix(t, "/"+of) {
			all = append(all, v)
		}
		for _, x := range v {
			all = append(all, find(x, of)...)
		}
	case []any:
		for _, x := range v {
			all = append(all, find(x, of)...)
		}
	}
	return all
}

// dig is what is in v under a path of keys; nil when nothing is.
func dig(v any, path ...string) any {
	for _, key := range path {
		m, ok := v.(object)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

func text(v any, path ...string) string {
	switch v := dig(v, path...).(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return ""
}

// duration reads a google.protobuf.Duration in JSON, or says what holds without one.
func duration(v any, without time.Duration, path ...string) time.Duration {
	d, err := time.ParseDuration(text(v, path...))
	if err != nil {
		return without
	}
	return d
}

func sendsKey(service object) bool {
	metadata, _ := service["initial_metadata"].([]any)
	return slices.ContainsFunc(metadata, func(x any) bool { return strings.EqualFold(text(x, "key"), "x-keyward-key") })
}

// decisionTimeout is the longest that a member has.
func decisionTimeout(f *Snapshot) (longest time.Duration) {
	for _, m := range f.counters() {
		if d, err := time.ParseDuration(m.flag("decision-timeout")); err == nil {
			longest = max(longest, d)
		}
	}
	return longest
}

// domains are those that rules are known for.
func (f *Snapshot) domains() []string {
	if f.Rules != nil {
		return f.Rules.Domains
	}
	return nil
}

// tellsTimeout says that this Envoy tells a service how long it waits: from 1.40 on.
func (e *EnvoyPages) tellsTimeout() bool {
	var info struct{ Version string }
	if json.Unmarshal(e.ServerInfo, &info) != nil {
		return false
	}
	for part := range strings.SplitSeq(info.Version, "/") { // commit/1.40.0/Clean/RELEASE/BoringSSL
		var major, minor int
		if n, _ := fmt.Sscanf(part, "%d.%d.", &major, &minor); n == 2 {
			return major > 1 || minor >= 40
		}
	}
	return false
}

// stat adds up all statistics whose names end so.
func (e *EnvoyPages) stat(suffix string) (sum float64) {
	for line := range strings.Lines(string(e.Stats)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil && strings.HasSuffix(name, suffix) {
			sum += v
		}
	}
	return sum
}

// Pages are what to ask an Envoy's admin for, in the order of ServerInfo, ConfigDump, Clusters and Stats.
func Pages() []string {
	return []string{"/server_info", "/config_dump?include_eds", "/clusters?format=json", "/stats?" + url.Values{"filter": {"ratelimit"}}.Encode()}
}
