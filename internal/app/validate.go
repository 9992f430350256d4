package app

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/browser"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// maxKeys is the largest --max-keys: at 48 bytes for each key more than any machine has for a sidecar.
const maxKeys = 1 << 30

// faults collects errors.
type faults []error

func (e *faults) add(format string, args ...any) { *e = append(*e, fmt.Errorf(format, args...)) }

// unless adds a fault unless ok.
func (e *faults) unless(ok bool, format string, args ...any) {
	if !ok {
		e.add(format, args...)
	}
}

// validate returns all faults of the flags, joined.
func (f *flags) validate() error {
	var e faults
	f.validateNames(&e)
	f.validateCluster(&e)
	f.validateRing(&e)
	f.validateAmounts(&e)
	f.validateData(&e)
	f.validateFederation(&e)
	f.validateRuleDefaults(&e)
	f.validateTLS(&e)
	f.validatePlaintext(&e)
	if _, err := parseMode(f.ModuleSocketMode); err != nil {
		e.add("--module-socket-mode: %w", err)
	}
	if f.ModuleSocket != "" {
		if err := module.CheckPath(f.ModuleSocket); err != nil {
			e.add("--module-socket: %w", err)
		}
	}
	return errors.Join(e...)
}

// validateNames checks names, addresses and the flags that take one of a few words.
func (f *flags) validateNames(e *faults) {
	if f.Node == "" {
		e.add("--node is empty and the host has no name")
	}
	if len(f.Node) > ring.MaxID {
		e.add("--node is %d bytes long: Envoy's ring takes at most %d", len(f.Node), ring.MaxID)
	}
	if err := membership.CheckID(ring.ID(f.Node)); err != nil {
		e.add("--node: %w", err)
	}
	for _, a := range [...]struct{ name, addr string }{
		{"gossip", f.Gossip}, {"peer", f.Peer}, {"xds", f.XDS}, {"metrics", f.Metrics}, {"rls-advertise", f.RLSAdvertise},
		{"route-advertise", f.RouteAdvertise}, {"route-listener", f.RouteListener},
	} {
		if err := hostPort(a.addr); err != nil {
			e.add("--%s %q: %w", a.name, a.addr, err)
		}
	}
	if host, _, err := net.SplitHostPort(f.RouteListener); err == nil && host != "" && net.ParseIP(host) == nil {
		e.add("--route-listener %q: Envoy listens on IP addresses, not on names", f.RouteListener)
	}
	f.validatePriming(e)
	if _, ok := policy.ParsePartition(f.Partition); !ok {
		e.add("--partition %q: want share, available or quorum", f.Partition)
	}
	e.unless(slices.Contains(rlsServers(), f.RLSServer), "--rls-server %q: want inline", f.RLSServer)
	e.unless(f.LostState == "prorata" || f.LostState == "full", "--lost-state %q: want prorata or full", f.LostState)
	_, ok := refundPolicies()[f.NegativeHits]
	e.unless(ok, "--allow-negative-hits %q: want local, certificate or any", f.NegativeHits)
	if f.Admin != "" {
		if _, err := api.SocketPath(f.Admin); err != nil {
			e.add("--admin %q: %w", f.Admin, err)
		}
	}
}

func (f *clusterFlags) validateCluster(e *faults) {
	if f.RingCapacity < 2 || f.RingCapacity > ring.MaxCapacity {
		e.add("--ring-capacity %d: want 2 to %d", f.RingCapacity, ring.MaxCapacity)
	}
	if len(f.Zone) > membership.MaxZone {
		e.add("--zone %q: %d bytes, at most %d", f.Zone, len(f.Zone), membership.MaxZone)
	}
	if err := membership.Detection(f.Detection).Validate(); err != nil || f.Detection == 0 {
		e.add("--detection %v: want %v to %v, in whole milliseconds", f.Detection,
			time.Duration(membership.MinDetection), time.Duration(membership.MaxDetection))
	}
	switch {
	case f.Expect < 0 || f.Expect > ring.MaxCapacity:
		e.add("--expect %d: want 0 to %d", f.Expect, ring.MaxCapacity)
	case f.Expect > 1 && len(f.Join) == 0:
		e.add("--expect %d needs --join: without it this member is alone and admits full limits", f.Expect)
	}
	switch {
	case f.ExpectTimeout < 0:
		e.add("--expect-timeout %s: want a time, or 0", f.ExpectTimeout)
	case f.ExpectTimeout > 0 && f.Expect == 0:
		e.add("--expect-timeout %s needs --expect", f.ExpectTimeout)
	}
}

// validatePriming checks the listener that an Envoy gets by xDS: it and this member must know its port.
func (f *flags) validatePriming(e *faults) {
	if f.PrimeListener == "" {
		return
	}
	if a, err := netip.ParseAddrPort(f.PrimeListener); err != nil || !a.Addr().IsLoopback() || a.Port() == 0 {
		e.add("--prime-listener %q: not a loopback address and port", f.PrimeListener)
	}
	e.unless(f.XDS != "", "--prime-listener needs --xds, which serves it")
}

// validateRuleDefaults reads --rule-defaults.
func (f *decisionFlags) validateRuleDefaults(e *faults) {
	content := []byte(f.RuleDefaults)
	if file, isFile := strings.CutPrefix(f.RuleDefaults, "@"); isFile {
		var err error
		if content, err = os.ReadFile(file); err != nil {
			e.add("--rule-defaults: %w", err)
			return
		}
	}
	if len(content) == 0 {
		return
	}
	var err error
	if f.ruleDefaults, err = config.ParseDefaults(content); err != nil {
		e.add("--rule-defaults: %w", err)
	}
}

// Limits of the flags of the journal.
const (
	minDataWindow = time.Second
	minDataSize   = 64 << 20
)

// validateData checks the flags of the journal.
func (f *dataFlags) validateData(e *faults) {
	e.unless(f.DataWindow >= minDataWindow, "--data-window %s: want at least %s", f.DataWindow, minDataWindow)
	e.unless(f.DataSize >= minDataSize, "--data-size %s: want at least 64MiB", f.DataSize.String())
}

// validateRing checks the flags of a ring of the user's own.
func (f *flags) validateRing(e *faults) {
	switch f.Ring {
	case "keyward":
		e.unless(f.Host == "", "--ring-host %q needs --ring envoy", f.Host)
		return
	case "envoy":
	default:
		e.add("--ring %q: want keyward or envoy", f.Ring)
		return
	}
	_, err := ring.ParseHashFunction(f.Hash)
	e.unless(err == nil, "--ring-hash %q: want xx or murmur2", f.Hash)
	if err := f.parameters().Validate(); err != nil {
		e.add("--ring-min-size, --ring-max-size: %w", err)
	}
	e.unless(f.Host != "", "--ring envoy needs --ring-host: the host by which Envoy's cluster hashes this member")
	e.unless(len(f.Host) <= ring.MaxHost, "--ring-host: %d bytes, at most %d", len(f.Host), ring.MaxHost)
	e.unless(f.XDS == "", "--xds with --ring envoy: xDS serves Keyward's own ring, and Envoys with a ring of yours need none")
}

// maxSnapshotAge is the longest --snapshot-age.
const maxSnapshotAge = 10 * time.Minute

// headerName matches names of headers, and no name.
var headerName = regexp.MustCompile("^[0-9A-Za-z!#$%&'*+.^_`|~-]*$")

// validateAmounts checks numbers and times.
func (f *flags) validateAmounts(e *faults) {
	if f.DecisionTimeout <= 0 {
		e.add("--decision-timeout %s: must be positive", f.DecisionTimeout)
	}
	if f.SnapshotAge <= 0 || f.SnapshotAge > maxSnapshotAge {
		e.add("--snapshot-age %s: want more than 0, and at most %s", f.SnapshotAge, maxSnapshotAge)
	}
	if f.MaxKeys <= 0 || f.MaxKeys > maxKeys {
		e.add("--max-keys %d: want 1 to %d", f.MaxKeys, maxKeys)
	}
	if f.MaxHolds <= 0 || f.MaxHolds > maxKeys {
		e.add("--max-holds %d: want 1 to %d", f.MaxHolds, maxKeys)
	}
	if f.DomainQuota < 0 || f.DomainQuota > f.MaxKeys {
		e.add("--domain-quota %d: want 0 to --max-keys, %d", f.DomainQuota, f.MaxKeys)
	}
	if !(f.HotRate >= 0) || math.IsInf(f.HotRate, 0) {
		e.add("--hot-rate %v: want requests per second, or 0", f.HotRate)
	}
	if !(f.LogDenials >= 0) || f.LogDenials > 1000 {
		e.add("--log-denials %v: want 0 to 1000 per second", f.LogDenials)
	}
	if f.AuditLog == "" {
		e.add("--audit-log: want the path of a file, stdout or otlp")
	}
	if !headerName.MatchString(f.DelayHeader) {
		e.add("--delay-header %q: want the name of a header", f.DelayHeader)
	}
	if f.Weight < 1 {
		e.add("--weight 0: must be at least 1")
	}
	if f.ConnectionAge < time.Second {
		e.add("--connection-age %s: at least 1s", f.ConnectionAge)
	}
	if f.MaxConnections < 1 {
		e.add("--max-connections %d: must be positive", f.MaxConnections)
	}
}

// validateTLS checks that the flags about certificates fit together.
func (f *securityFlags) validateTLS(e *faults) {
	n := f.tlsFiles()
	if f.TLSBindName != "" && strings.Count(f.TLSBindName, nodePlaceholder) != 1 {
		e.add("--tls-bind-name %q: want one %s in it", f.TLSBindName, nodePlaceholder)
	}
	if n == 0 && (f.TLSBindName != "" || len(f.TLSEnvoyNames) > 0) {
		e.add("--tls-bind-name and --tls-envoy-names need --tls-cert, --tls-key and --tls-ca")
	}
	if n != 0 && n != 3 {
		e.add("--tls-cert, --tls-key and --tls-ca belong together: give all three")
	}
	if _, err := browser.NewHosts(f.AllowedHosts...); err != nil {
		e.add("--allowed-hosts: %w", err)
	}
}

// tlsFiles returns how many of the three files are given.
func (f *securityFlags) tlsFiles() (n int) {
	for _, file := range []string{f.TLS.Cert, f.TLS.Key, f.TLS.CA} {
		if file != "" {
			n++
		}
	}
	return n
}

// validatePlaintext refuses plaintext to other pods, unless a flag asks for it.
func (f *flags) validatePlaintext(e *faults) {
	if f.Insecure {
		return
	}
	noTLS := f.tlsFiles() == 0
	if len(f.Join) > 0 && f.GossipKeyFile == "" {
		e.add("--join needs --gossip-key-file, or --insecure on a laptop")
	}
	if len(f.Join) > 0 && noTLS {
		e.add("--join needs --tls-cert, --tls-key and --tls-ca, or --insecure on a laptop")
	}
	if f.RLSAdvertise != "" && noTLS && !f.RLSPlaintext && !loopback(f.RLSAdvertise) {
		e.add("--rls-advertise needs --tls-cert, --tls-key and --tls-ca, or --rls-plaintext where a mesh encrypts")
	}
}

// grpcGo is the value of --rls-server that chose grpc-go's server in earlier releases.
const grpcGo = "grpc"

// rlsServers returns the values of --rls-server. All of them mean the inline server; lean is an older name of it.
func rlsServers() []string { return []string{"inline", "lean", grpcGo} }

// refundPolicies returns the values of --allow-negative-hits.
func refundPolicies() map[string]bool {
	return map[string]bool{"local": true, "certificate": true, "any": true}
}

// hosts returns the host names that the HTTP listeners accept.
func (f *flags) hosts() browser.Hosts {
	h, _ := browser.NewHosts(f.AllowedHosts...) // validated
	return h
}

// hostPort returns an error unless addr is empty or host:port.
func hostPort(addr string) error {
	if addr == "" {
		return nil
	}
	i := strings.LastIndexByte(addr, ':')
	if i < 0 {
		return errors.New("want host:port")
	}
	if p, err := strconv.Atoi(addr[i+1:]); err != nil || p < 0 || p > 65535 {
		return errors.New("the port is a number from 0 to 65535")
	}
	if host := addr[:i]; strings.Contains(host, ":") && !(strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")) {
		return errors.New("write an IPv6 address in brackets: [::1]:7946")
	}
	return nil
}
