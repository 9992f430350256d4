package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EnvoyPages holds the admin pages of one Envoy.
type EnvoyPages struct {
	Address    string
	ServerInfo []byte // /server_info
	ConfigDump []byte // /config_dump?include_eds
	Clusters   []byte // /clusters?format=json
	Stats      []byte // /stats?filter=ratelimit, text
	Err        error
}

// object is a JSON object.
type object = map[string]any

func examineEnvoy(f *Snapshot, e *EnvoyPages, r *report) {
	if e.Err != nil {
		r.fail("use the address of Envoy's admin page, often 127.0.0.1:9901 or :15000, and make it reachable from here",
			"%s does not respond: %v", e.Address, e.Err)
		return
	}
	var dump any
	if err := json.Unmarshal(e.ConfigDump, &dump); err != nil {
		r.fail("", "%s: cannot read its configuration: %v", e.Address, err)
		return
	}
	filters := find(dump, "envoy.extensions.filters.http.ratelimit.v3.RateLimit")
	if len(filters) == 0 {
		r.fail("`keyward envoy-config --part filter --rules DIR` prints one", "%s has no rate-limit filter", e.Address)
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
	if calls := errors + e.stat(".ratelimit.ok") + e.stat(".ratelimit.over_limit"); errors > 0 && errors > calls/1000 {
		r.warn("their requests were admitted uncounted, or denied if failure_mode_deny is set: check timeout, retries and "+
			"hosts above",
			"%s: %.0f of %.0f calls failed", e.Address, errors, calls)
	}
	if !slices.ContainsFunc(r.findings, func(x Finding) bool {
		return x.Check == r.check && strings.HasPrefix(x.Text, e.Address)
	}) {
		r.ok("%s calls owners directly, and their successors if they do not respond", e.Address)
	}
}

// examineFilter checks the timeout, the retries and the behavior on errors.
func examineFilter(f *Snapshot, e *EnvoyPages, filter object, r *report) {
	timeout := duration(filter, 20*time.Millisecond, "timeout")
	domain := text(filter, "domain")
	add := func(level Severity, advice, format string, args ...any) {
		r.add(level, advice, "%s, filter of domain %s: %s", e.Address, domain, fmt.Sprintf(format, args...))
	}
	decision := decisionTimeout(f)
	if !e.sendsTimeout() && decision > 0 && timeout <= decision {
		add(Fail, fmt.Sprintf("set the filter's timeout well above --decision-timeout (%v), for example to 0.1s; Envoy "+
			"1.40 and later sends its timeout, and members then use 60 %% of it",
			decision),
			"its timeout of %v expires before a member applies the degraded policy after %v", timeout, decision)
	} else if timeout < 50*time.Millisecond {
		add(Warn, "set timeout: 0.1s; it covers all attempts",
			"its timeout of %v leaves no time for a retry at the successor of an owner that does not respond", timeout)
	}
	if deny, _ := filter["failure_mode_deny"].(bool); !deny {
		add(Warn,
			"decide: true denies requests whose call fails; false, as here, admits them uncounted. With retries at the "+
				"successor, failed calls are rare",
			"failure_mode_deny is off")
	}
	if domains := f.domains(); len(domains) > 0 && !slices.Contains(domains, domain) {
		add(Fail, "use the same domain in the filter and in the rules",
			"there are no rules for this domain; configured domains: %s", strings.Join(domains, ", "))
	}
	service, _ := dig(filter, "rate_limit_service", "grpc_service").(object)
	if text(service, "envoy_grpc", "cluster_name") == "" {
		return
	}
	if !sendsKey(service) {
		add(Warn, "add initial_metadata x-keyward-key to its grpc_service, as `keyward envoy-config` prints it",
			"it sends no x-keyward-key: it calls any member, which forwards the request")
		return
	}
	if text(service, "envoy_grpc", "retry_policy", "retry_on") != "" {
		add(Warn, "move it up to grpc_service.retry_policy", "envoy_grpc.retry_policy is ignored by this filter")
	}
	retries, _ := dig(service, "retry_policy").(object)
	examineRetries(retries, timeout, add)
}

// examineRetries checks that a call is retried at the successor if the owner does not respond, so that no call fails.
func examineRetries(retries object, timeout time.Duration, add func(level Severity, advice, format string, args ...any)) {
	const advice = "copy grpc_service.retry_policy from `keyward envoy-config`: reset,connect-failure,refused-stream, " +
		"max_interval 0.04s, previous_hosts"
	on := strings.Split(text(retries, "retry_on"), ",")
	interval := duration(retries, 0, "retry_back_off", "max_interval")
	hosts, _ := retries["retry_host_predicate"].([]any)
	switch {
	case retries == nil:
		add(Fail, advice, "no retries: while an owner does not respond or is gone, calls for its keys fail")
	case !slices.Contains(on, "reset"):
		add(Fail, advice, "it retries on %s only: if an owner runs but does not respond, every call for its keys fails",
			strings.Join(on, ", "))
	case !slices.Contains(on, "connect-failure"):
		add(Warn, advice,
			"it does not retry on connect-failure: calls for the keys of a failed owner fail until Envoy has new endpoints")
	case interval == 0 || interval >= timeout:
		add(Fail, advice,
			"retry_back_off.max_interval, the time of one attempt, is %v with a timeout of %v: the successor is never called",
			interval, timeout)
	case len(hosts) == 0:
		add(Warn, advice, "no previous_hosts predicate: the retry may go to the same owner again")
	}
}

func examineCluster(e *EnvoyPages, c object, r *report) {
	name := text(c, "name")
	add := func(level Severity, advice, format string, args ...any) {
		r.add(level, advice, "%s, cluster %s: %s", e.Address, name, fmt.Sprintf(format, args...))
	}
	policy := cmp.Or(text(c, "lb_policy"), "ROUND_ROBIN")
	if policies, ok := dig(c, "load_balancing_policy", "policies").([]any); ok && len(policies) > 0 {
		policy = text(policies[0], "typed_extension_config", "name")
	}
	if !strings.Contains(strings.ToLower(policy), "ring_hash") {
		add(Warn,
			"to call owners directly, get the cluster from Keyward's xDS or from `keyward envoy-config --part cluster`; for "+
				"plain RLS, LEAST_REQUEST avoids slow members",
			"its policy is %s: it calls any member, which forwards the request", policy)
		return
	}
	if c["outlier_detection"] != nil {
		add(Warn,
			"remove outlier_detection: an ejected member is still the owner for the other members, so requests for its keys "+
				"take an additional hop",
			"it ejects hosts on its own")
	}
	if checks, ok := c["health_checks"].([]any); ok && len(checks) > 0 {
		add(Warn, "remove health_checks: EDS reports the live members to all Envoys",
			"it checks the health of hosts on its own: its ring may differ from that of other Envoys")
	}
	if panics := text(c, "common_lb_config", "healthy_panic_threshold", "value"); panics != "" && panics != "0" {
		add(Warn, "set healthy_panic_threshold to 0, as `keyward envoy-config --part cluster` does",
			"in panic mode it calls hosts that are gone")
	}
}

// clusterStatuses holds the part of /clusters?format=json that is checked.
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

// examineHosts checks that Envoy's endpoints are the members on the ring.
func examineHosts(f *Snapshot, e *EnvoyPages, name string, r *report) {
	var all clusterStatuses
	if err := json.Unmarshal(e.Clusters, &all); err != nil {
		r.fail("", "%s: cannot read its clusters: %v", e.Address, err)
		return
	}
	i := slices.IndexFunc(all.Clusters, func(c clusterStatus) bool { return c.Name == name })
	if i < 0 {
		r.fail("add the cluster, or get clusters from Keyward's xDS and check `keyward xds status`",
			"%s has no cluster %s, which its filter calls", e.Address, name)
		return
	}
	endpoints := map[string]bool{}
	for _, h := range all.Clusters[i].Hosts {
		if h.Locality.Region != "void" { // the placeholder without a member
			endpoints[net.JoinHostPort(h.Address.Socket.Address, strconv.Itoa(h.Address.Socket.Port))] = true
		}
	}
	members := f.rlsAddresses()
	if len(members) == 0 || len(endpoints) == 1 {
		return // it calls a sidecar or a Service, which forwards
	}
	for _, at := range slices.Sorted(maps.Keys(members)) {
		if !endpoints[at] {
			r.fail("check `keyward xds status`; a static list of endpoints must contain all members",
				"%s, cluster %s: %s at %s is not an endpoint, so Envoy's ring differs from the members'", e.Address, name,
				members[at], at)
		}
		delete(endpoints, at)
	}
	for _, at := range slices.Sorted(maps.Keys(endpoints)) {
		r.fail("check `keyward xds status`; a static list of endpoints must contain members only",
			"%s, cluster %s: its endpoint %s is not a member on the ring", e.Address, name, at)
	}
}

// rlsAddresses returns the names of the members on the ring by the address at which Envoys call them.
func (f *Snapshot) rlsAddresses() map[string]string {
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

// find returns the objects of a type anywhere in v.
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

// dig returns the value at a path of keys in v, or nil.
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

// duration returns a google.protobuf.Duration in JSON, or a default if there is none.
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

// decisionTimeout returns the longest --decision-timeout of the members.
func decisionTimeout(f *Snapshot) (longest time.Duration) {
	for _, m := range f.counters() {
		if d, err := time.ParseDuration(m.flag("decision-timeout")); err == nil {
			longest = max(longest, d)
		}
	}
	return longest
}

// domains returns the domains of the local rules.
func (f *Snapshot) domains() []string {
	if f.Rules != nil {
		return f.Rules.Domains
	}
	return nil
}

// sendsTimeout reports whether this Envoy sends its timeout with a call: version 1.40 and later.
func (e *EnvoyPages) sendsTimeout() bool {
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

// stat returns the sum of all statistics whose names have the given suffix.
func (e *EnvoyPages) stat(suffix string) (sum float64) {
	for line := range strings.Lines(string(e.Stats)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil && strings.HasSuffix(name, suffix) {
			sum += v
		}
	}
	return sum
}

// Pages returns the paths of the admin pages, in the order of ServerInfo, ConfigDump, Clusters and Stats.
func Pages() []string {
	return []string{"/server_info", "/config_dump?include_eds", "/clusters?format=json", "/stats?filter=ratelimit"}
}
