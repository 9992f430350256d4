package rlqs

import (
	"fmt"
	"strings"

	"github.com/keyward/keyward/internal/lab"
)

// listener is a listener with the RLQS filter, in the Envoy of each release. Its name is its domain, unless it shares that of another.
type listener struct {
	name     string
	domain   string // empty: name
	assign   string // fields of no_assignment_behavior's fallback; empty: the behavior is not set
	expired  string // fields of expired_assignment_behavior
	filter   string // more fields of the filter's configuration
	matcher  string // bucket_matchers with @SETTINGS@; empty: requests with x-key
	route    string // more fields of the route
	host     string // more fields of the virtual host
	server   string // cluster of the RLQS server; empty: quota
	disabled bool   // the filter is disabled in the chain
	upstream bool   // requests go to an application; else Envoy answers them itself
	moves    bool   // it comes from a file that Envoy watches
}

// Fields of strategies.
const (
	denies = "blanket_rule: DENY_ALL"
	admits = "blanket_rule: ALLOW_ALL"
)

// listeners are those of the Envoy that the tests of a release share.
var listeners []*listener

// shared declares a listener of the shared Envoys.
func shared(l listener) *listener {
	listeners = append(listeners, &l)
	return &l
}

// header returns the input of a matcher that reads a request's header.
func header(name string) string {
	return "{name: h, typed_config: " + lab.TypedConfig("envoy.type.matcher.v3.HttpRequestHeaderMatchInput", "header_name: "+name) + "}"
}

const filterName = "envoy.filters.http.rate_limit_quota"

// settings are the bucket settings: an id is {name: k, key: the value of x-key}.
func (l *listener) settings() string {
	var fields strings.Builder
	if l.assign != "" {
		fmt.Fprintf(&fields, "no_assignment_behavior: {fallback_rate_limit: {%s}}, ", l.assign)
	}
	if l.expired != "" {
		fmt.Fprintf(&fields, "expired_assignment_behavior: {%s}, ", l.expired)
	}
	fields.WriteString("reporting_interval: 1s, bucket_id_builder: {bucket_id_builder: {name: {string_value: k}, key: {custom_value: " + header("x-key") + "}}}")
	return lab.TypedConfig("envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings", fields.String())
}

func (l *listener) rlqs() string {
	matcher := l.matcher
	if matcher == "" {
		matcher = "{matcher_list: {matchers: [{predicate: {single_predicate: {input: " + header("x-key") +
			", value_match: {safe_regex: {google_re2: {}, regex: \".+\"}}}}, on_match: {action: {name: a, typed_config: @SETTINGS@}}}]}}"
	}
	server := l.server
	if server == "" {
		server = "quota"
	}
	return fmt.Sprintf("{name: %s, disabled: %v, typed_config: %s}", filterName, l.disabled,
		lab.TypedConfig("envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig", fmt.Sprintf(
			"domain: %s, %s rlqs_server: {envoy_grpc: {cluster_name: %s}, initial_metadata: [{key: x-keyward-envoy, value: pod-7}]}, bucket_matchers: %s",
			l.domainName(), l.filter, server, strings.ReplaceAll(matcher, "@SETTINGS@", l.settings()))))
}

func (l *listener) domainName() string {
	if l.domain != "" {
		return l.domain
	}
	return l.name
}

// yaml returns the listener on one line.
func (l *listener) yaml(port string) string {
	action := `direct_response: {status: 200, body: {inline_string: "ok"}}`
	if l.upstream {
		action = "route: {cluster: app, timeout: 0s}"
	}
	manager := lab.TypedConfig("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", fmt.Sprintf(
		`stat_prefix: in, generate_request_id: false, route_config: {name: r, virtual_hosts: [{name: v, domains: ["*"], %s routes: [{match: {prefix: /}, %s, %s}]}]}, http_filters: [%s, {name: envoy.filters.http.router, typed_config: %s}]`,
		l.host, action, l.route, l.rlqs(), lab.TypedConfig("envoy.extensions.filters.http.router.v3.Router", "")))
	return fmt.Sprintf(`"@type": type.googleapis.com/envoy.config.listener.v3.Listener, name: %s, address: {socket_address: {address: 127.0.0.1, port_value: %s}}, filter_chains: [{filters: [{name: hcm, typed_config: %s}]}]`,
		l.name, port, manager)
}

// bootstrap returns Envoy's configuration. Listeners that move are read from dir.
func bootstrap(dir string, ports map[string]string, ls []*listener, clusters ...string) string {
	static, moving := "", false
	for _, l := range ls {
		moving = moving || l.moves
		if !l.moves {
			// The bootstrap has no Any here.
			static += "  - {" + strings.TrimPrefix(l.yaml(ports[l.name]), `"@type": type.googleapis.com/envoy.config.listener.v3.Listener, `) + "}\n"
		}
	}
	dynamic := ""
	if moving {
		dynamic = fmt.Sprintf("dynamic_resources: {lds_config: {resource_api_version: V3, path_config_source: {path: %s/lds.yaml, watched_directory: {path: %s}}}}\n", dir, dir)
	}
	return "node: {id: lab, cluster: lab}\nadmin: {address: {socket_address: {address: @ADMINHOST@, port_value: @ADMINPORT@}}}\n" +
		dynamic + "static_resources:\n  listeners:\n" + static + "  clusters:\n" + strings.Join(clusters, "")
}

// moved returns the file of listeners that move.
func moved(version int, ports map[string]string, ls []*listener) string {
	text := fmt.Sprintf("version_info: %q\nresources:\n", fmt.Sprint(version))
	for _, l := range ls {
		if l.moves {
			text += "- {" + l.yaml(ports[l.name]) + "}\n"
		}
	}
	return text
}
