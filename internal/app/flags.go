// Package app assembles the parts of a sidecar and of an xDS server from flags and environment, and starts and stops
// them.
//
// It makes the few decisions that concern several parts: when a member is ready (progress.go), how it leaves the
// cluster (leave.go), how an operator's order becomes a hot key's route (hot.go), and what the timeline records
// (timeline.go).
package app

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/ring"
)

// flags are the command-line flags of cmd/sidecar and cmd/xds. Each is also read from the environment, as KEYWARD_
// and its name in upper snake case. The command line takes precedence. The comments of define's texts explain them.
type flags struct {
	memberFlags
	addressFlags
	clusterFlags
	ringFlags
	decisionFlags
	responseFlags
	counterFlags
	dataFlags
	federationFlags
	securityFlags
	envoyFlags

	effective map[string]string // the values of all flags, by name
}

// memberFlags describe this member.
type memberFlags struct {
	Node   string
	Weight uint32
	Admin  string // unix:PATH, or empty
}

// addressFlags are host:port addresses. An empty one is not served, or not advertised.
type addressFlags struct {
	Gossip, Peer, Metrics, XDS   string // to listen on
	RLSAdvertise, RouteAdvertise string // for Envoys of other pods; the first is also listened on
	Advertise                    string // host that other members use
	ModuleSocket                 string // path; empty: none
	ModuleSocketMode             string // octal
}

// clusterFlags describe the cluster to join.
type clusterFlags struct {
	Join          []string // gossip addresses: host:port or dns+host:port
	Cluster       string   // label
	Expect        int
	ExpectTimeout time.Duration // 0: never
	RingCapacity  int
	NRefDecay     time.Duration
	Detection     time.Duration // see membership.Detection
	Zone          string        // empty: unknown
}

// ringFlags describe the ring to use, and this member on it.
type ringFlags struct {
	Ring             string // keyward or envoy
	MinSize, MaxSize uint32 // with envoy
	Hash             string // with envoy: xx or murmur2
	Host             string // with envoy
}

// decisionFlags say how calls are decided.
type decisionFlags struct {
	RLSServer       string // one of rlsServers
	DecisionTimeout time.Duration
	Partition       string // a key of policies
	LostState       string // prorata or full
	SnapshotAge     time.Duration
	NegativeHits    string  // a key of refunds
	LogDenials      float64 // per second and rule
	AuditLog        string  // stdout, otlp, or the path of a file
	RuleDefaults    string  // YAML, or @ and the path of a file

	ruleDefaults config.Defaults // what RuleDefaults contains, once it is validated
}

// responseFlags add to responses what envoyproxy/ratelimit does not send.
type responseFlags struct {
	RetryAfter       bool
	RateLimitFields  bool
	DecisionHeaders  bool
	DecisionMetadata bool
	DelayHeader      string
}

// counterFlags bound the memory for counters, and say which keys are hot.
type counterFlags struct {
	MaxKeys     int
	MaxHolds    int
	DomainQuota int     // 0: half of MaxKeys
	HotRate     float64 // requests per second; 0: 5 % of this machine's capacity
	NoHot       bool
}

// dataFlags describe the journal, in which counters of long windows outlive every member.
type dataFlags struct {
	Data       string        // directory; empty: no journal
	DataWindow time.Duration // the shortest window of the rules whose counters it contains
	DataSize   byteSize      // the most bytes of it
}

// securityFlags protect the listeners.
type securityFlags struct {
	GossipKeyFile  string
	TLS            certs.Files // this member's certificate and key, and the CA of the others
	TLSPeerNames   []string
	TLSEnvoyNames  []string
	TLSBindName    string
	ConnectionAge  time.Duration
	MaxConnections int // of each listener for Envoys
	RLSPlaintext   bool
	AllowedHosts   []string
	Insecure       bool
}

// envoyFlags describe the Envoys that take their configuration from xDS.
type envoyFlags struct {
	RouteListener, RouteHeader, RouteCluster string
	PrimeListener                            string // on loopback; empty: keys are not primed
	EnvoyConnect                             time.Duration
}

// flagGroup is a part of what --help prints.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// define defines all flags. Their texts are what --help and docs/configuration.md show.
func (f *flags) define(s *pflag.FlagSet, getenv func(string) string) []flagGroup {
	var groups []flagGroup
	add := func(title string, define func(*pflag.FlagSet)) {
		g := flagGroup{title, pflag.NewFlagSet("", pflag.ContinueOnError)}
		g.flags.SortFlags = false
		define(g.flags)
		s.AddFlagSet(g.flags)
		groups = append(groups, g)
	}
	add("This member", func(s *pflag.FlagSet) { f.memberFlags.define(s, getenv) })
	add("Addresses", f.addressFlags.define)
	add("The cluster to join", f.clusterFlags.define)
	add("The ring", f.ringFlags.define)
	add("Decisions", f.decisionFlags.define)
	add("Responses", f.responseFlags.define)
	add("Counters and hot keys", f.counterFlags.define)
	add("Journal", f.dataFlags.define)
	add("Federation", f.federationFlags.define)
	add("Security", f.securityFlags.define)
	add("Envoys that are configured by xDS", f.envoyFlags.define)
	return groups
}

func (f *memberFlags) define(s *pflag.FlagSet, getenv func(string) string) {
	s.StringVar(&f.Node, "node", defaultNode(getenv),
		"stable `name` of this member; it determines its place on the ring (default: POD_NAME, else the hostname)")
	s.Uint32Var(&f.Weight, "weight", 1, "weight of this member on the ring; a member of weight 2 owns twice as many keys")
	s.StringVar(&f.Admin, "admin", DefaultAdmin, "unix `socket` for commands that change something, unix:PATH; empty: none")
}

func (f *addressFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.Gossip, "gossip", ":7946", "`host:port` to listen on for gossip, TCP and UDP")
	s.StringVar(&f.Peer, "peer", ":7947", "`host:port` to listen on for requests of other members")
	s.StringVar(&f.Metrics, "metrics", ":9090", "`host:port` of /metrics, /cluster, /healthz and /readyz")
	s.StringVar(&f.XDS, "xds", "", "`host:port` to serve xDS on; empty: none")
	s.StringVar(&f.Advertise, "advertise", "", "`address` advertised to other members (default: POD_IP, else the listening address)")
	s.StringVar(&f.RLSAdvertise, "rls-advertise", "", "`host:port` to serve rate limit calls of other pods' Envoys on, with mTLS")
	s.StringVar(&f.RouteAdvertise, "route-advertise", "", "`host:port` of this pod's Envoy, for ring-hash routes")
	s.StringVar(&f.ModuleSocket, "module-socket", "", "`path` of a unix socket to lease hits on to dynamic modules in this pod's Envoys; empty: none")
	s.StringVar(&f.ModuleSocketMode, "module-socket-mode", "0600", "`permissions` of --module-socket, in octal digits")
}

func (f *clusterFlags) define(s *pflag.FlagSet) {
	s.StringSliceVar(&f.Join, "join", nil,
		"gossip `addresses` of other members, host:port or dns+host:port, resolved continuously; none: run standalone")
	s.StringVar(&f.Cluster, "cluster", "keyward", "`label` of the cluster; members with another label are refused")
	s.IntVar(&f.Expect, "expect", 0,
		"`number` of members to meet before deciding with full limits; until then each limit is divided by this number")
	s.DurationVar(&f.ExpectTimeout, "expect-timeout", 0, "after this time fewer members than --expect are enough for full limits; 0: never")
	s.IntVar(&f.RingCapacity, "ring-capacity", ring.DefaultCapacity, "C: the members' weights sum to at most C-1; at most 8192")
	s.DurationVar(&f.Detection, "detection", time.Duration(membership.DefaultDetection),
		"`time` in which the failure of a member is detected, 1s to 30s; heartbeats, probes and the takeover follow from it")
	s.StringVar(&f.Zone, "zone", "",
		"`name` of the failure domain of this member, such as its availability zone; keys whose owner and successor are in one "+
			"zone are replicated to another one as well; empty: unknown")
	s.DurationVar(&f.NRefDecay, "nref-decay", time.Minute, "how long a failed member still counts when limits are divided")
}

func (f *ringFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.Ring, "ring", "keyward",
		"`kind` of ring: keyward (Keyward's own) or envoy (that of a RING_HASH cluster of yours, so that its requests reach the "+
			"owners of their keys directly); while members differ, all use keyward")
	s.StringVar(&f.Host, "ring-host", "",
		"`host` of this member on the ring envoy: the address that Envoy hashes, as IP:port, or its host name with "+
			"use_hostname_for_hashing; :port uses the host of --advertise")
	sizes := ring.EnvoyParameters(0, 0, ring.XXHash)
	s.Uint32Var(&f.MinSize, "ring-min-size", sizes.MinSize, "minimum_ring_size of the ring envoy, at most 1048576")
	s.Uint32Var(&f.MaxSize, "ring-max-size", sizes.MaxSize, "maximum_ring_size of the ring envoy")
	s.StringVar(&f.Hash, "ring-hash", "xx", "hash `function` of the ring envoy: xx (XX_HASH) or murmur2 (MURMUR_HASH_2)")
}

// parameters returns the ring that the flags describe. They are validated.
func (f *ringFlags) parameters() ring.Parameters {
	if f.Ring != "envoy" {
		return ring.Parameters{}
	}
	hash, _ := ring.ParseHashFunction(f.Hash)
	return ring.Parameters{Envoy: true, MinSize: f.MinSize, MaxSize: f.MaxSize, Hash: hash}
}

func (f *decisionFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.RLSServer, "rls-server", "inline",
		"gRPC `server` for rate limit calls: inline, which decides calls on the goroutine of their connection; grpc is deprecated "+
			"and means inline")
	s.StringVar(&f.RLSServer, "rls-door", "lean", "older `name` of --rls-server; lean means inline")
	s.DurationVar(&f.DecisionTimeout, "decision-timeout", 12*time.Millisecond,
		"how long a request waits for an owner that does not answer, if the caller sends no timeout (else 60 % of that timeout); "+
			"for a live owner it waits 1 s (else 90 %)")
	s.StringVar(&f.Partition, "partition", "share",
		"`policy` of a part of a partitioned cluster: share (its members' part of each limit), available (the full limit) or "+
			"quorum (the full limit in a majority, else nothing)")
	s.StringVar(&f.LostState, "lost-state", "prorata",
		"`policy` of a key when all members with its count have failed: prorata (the part of the limit for the time that is left "+
			"of its window) or full (the full limit again)")
	s.DurationVar(&f.SnapshotAge, "snapshot-age", time.Minute,
		"how old the last known state of a key may be for a fail_closed rule to use it while the owner cannot be reached; at most "+
			"10m")
	s.StringVar(&f.NegativeHits, "allow-negative-hits", "local",
		"`callers` that may refund hits (is_negative_hits): local (with a client certificate, on a unix socket, or on this machine), "+
			"certificate (only with a client certificate) or any (all, also by /json)")
	s.Float64Var(&f.LogDenials, "log-denials", 1,
		"denials to log per `second` and rule, at LOG_LEVEL info, without values that callers send; 0: none")
	s.StringVar(&f.AuditLog, "audit-log", "stdout",
		"`target` of the records of rules with audit: true, at any LOG_LEVEL: the path of a file, which SIGHUP opens again, stdout, "+
			"or otlp (OTEL_EXPORTER_OTLP_ENDPOINT, by HTTP)")
	s.StringVar(&f.RuleDefaults, "rule-defaults", "",
		"`YAML` map of domains to keys of metadata.keyward for their rules that lack them, for xDS servers that send no metadata; "+
			"@FILE reads it from a file")
}

func (f *responseFlags) define(s *pflag.FlagSet) {
	s.BoolVar(&f.RetryAfter, "retry-after", false,
		"add the header Retry-After to responses over the limit, for Envoys before 1.40 and gateways that do not add it")
	s.BoolVar(&f.RateLimitFields, "ratelimit-fields", false,
		"add the headers RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-10 to responses")
	s.BoolVar(&f.DecisionHeaders, "decision-headers", false,
		"add the headers x-keyward-authority and x-keyward-path, x-keyward-reason for fair_share, and x-keyward-delay for leaky buckets, to responses")
	s.BoolVar(&f.DecisionMetadata, "decision-metadata", false,
		"add keyward: {authority, path}, reason: fair_share, and delay for leaky buckets, to the dynamic metadata of responses, for access logs")
	s.StringVar(&f.DelayHeader, "delay-header", "",
		"`header` of the forwarded request with the delay of a leaky bucket in milliseconds; x-envoy-fault-delay-request makes "+
			"Envoy's fault filter wait; empty: none")
}

func (f *counterFlags) define(s *pflag.FlagSet) {
	s.IntVar(&f.MaxKeys, "max-keys", 500_000, "exact counters to keep; further keys are counted in a sketch that never admits too much")
	s.IntVar(&f.MaxHolds, "max-holds", 1<<18, "holds to keep, open and settled in the last minute, and as many of other members; half of them in one domain. Further ones are refused")
	s.IntVar(&f.DomainQuota, "domain-quota", 0, "exact counters that one domain may use (default: half of --max-keys)")
	s.Float64Var(&f.HotRate, "hot-rate", 0,
		"`requests` per second for one key below which it is never hot (default: 5 % of this machine's measured capacity)")
	s.BoolVar(&f.NoHot, "no-hot", false, "find no hot keys: only rules and operators' orders have keys leased or routed to other members")
}

func (f *dataFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.Data, "data", "",
		"`directory` for a journal of counters, so that they outlive the loss of every member; several members may share it; empty: "+
			"counters are only in memory")
	s.DurationVar(&f.DataWindow, "data-window", time.Hour,
		"shortest window of the rules whose counters the journal contains; for buckets, the shortest time to fill")
	f.DataSize = journal.DefaultMaxBytes
	s.Var(&f.DataSize, "data-size", "most `bytes` of this member's journal, like 512MiB or 1GiB, at least 64MiB")
}

func (f *federationFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.Region, "region", "",
		"`name` of the region of this cluster in the file of --federation; if that has holders instead of regions, the default is --node")
	s.StringVar(&f.Federation, "federation", "",
		"`file` with the regions that share limits: name, epoch, coordinator, and regions with name and weight, read again when it "+
			"changes; empty: limits are this cluster's own")
	s.StringVar(&f.FederationListen, "federation-listen", "",
		"`host:port`, usually :7948, to serve other regions on, if the coordinator of --federation is this region or spread, or will be; empty: "+
			"other members of this cluster do")
	f.defineMargin(s)
	s.StringSliceVar(&f.Authorities, "authority", nil,
		"`NAME=URL` of a coordinator that lends parts of limits to regions: keyward://host:port (cmd/coordinator, with --tls-cert), "+
			"redis://host:port or rediss://host:port; NAME=@FILE reads the URL, with its password, from a file")
}

func (f *securityFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.GossipKeyFile, "gossip-key-file", "", "`file` of gossip keys, base64, one per line; the first encrypts")
	s.StringVar(&f.TLS.Cert, "tls-cert", "", "`file` of this member's certificate, reloaded when it changes")
	s.StringVar(&f.TLS.Key, "tls-key", "", "`file` of its key")
	s.StringVar(&f.TLS.CA, "tls-ca", "", "`file` of the CA that signs the certificates of other members and of Envoys")
	s.StringSliceVar(&f.TLSPeerNames, "tls-peer-names", nil,
		"URI or DNS `names`, one of which another member's certificate must carry (default: those of --tls-cert; for xds, which has a "+
			"different kind of certificate: any)")
	s.StringSliceVar(&f.TLSEnvoyNames, "tls-envoy-names", nil,
		"URI or DNS `names`, one of which an Envoy's certificate must carry on --rls-advertise and --xds, unless it is a member's "+
			"(default: any certificate of the CA)")
	s.StringVar(&f.TLSBindName, "tls-bind-name", "",
		"`name` with {node} in it that another member's certificate must carry, with that member's own name in its place: "+
			"spiffe://example.org/keyward/{node}")
	s.DurationVar(&f.ConnectionAge, "connection-age", time.Hour,
		"how long a connection between pods lives, so that a client that lost its certificate is disconnected")
	s.IntVar(&f.MaxConnections, "max-connections", 1024,
		"connections of each listener for Envoys; one more replaces the connection that has been silent longest")
	s.BoolVar(&f.RLSPlaintext, "rls-plaintext", false, "serve --rls-advertise without TLS, for meshes that encrypt")
	s.StringSliceVar(&f.AllowedHosts, "allowed-hosts", nil,
		"host `names` that requests to the HTTP listeners may use, in addition to IP addresses, localhost, the machine's name and names "+
			"of Services (without a dot, or ending in .svc or .cluster.local); *.example.org: all names below it")
	s.BoolVar(&f.Insecure, "insecure", false, "run without a gossip key and without TLS between pods, as on a laptop")
}

func (f *envoyFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.RouteListener, "route-listener", "0.0.0.0:10000", "`host:port` of the listener that xDS serves for ring-hash routes")
	s.StringVar(&f.RouteHeader, "route-header", "x-api-key", "`header` that the ring-hash routes hash")
	s.StringVar(&f.RouteCluster, "route-cluster", "upstream",
		"`name` of the application's cluster in Envoys that ask owners directly and take their routes, with those of hot keys, from xDS")
	s.StringVar(&f.PrimeListener, "prime-listener", "",
		"loopback `host:port` of a listener that xDS serves to the one Envoy next to this sidecar, instead of --route-listener: the sidecar primes "+
			"keys of rules with hot_step: quota through it before their routes switch; empty: only those with first: allow switch")
	s.DurationVar(&f.EnvoyConnect, "envoy-connect-timeout", 25*time.Millisecond,
		"how long an Envoy waits for a connection to an owner before it asks the successor")
}

func defaultNode(getenv func(string) string) string {
	if n := getenv("POD_NAME"); n != "" {
		return n
	}
	n, err := os.Hostname()
	if err != nil {
		return ""
	}
	return n
}

// Parse reads the command line and the environment. It returns all faults, joined, or pflag.ErrHelp after printing
// the help that was asked for.
func Parse(name, about string, args []string, getenv func(string) string) (flags, error) {
	f := flags{effective: map[string]string{}}
	s := newFlagSet(name)
	errs := readFlags(s, about, f.define(s, getenv), args, getenv)
	if slices.Contains(errs, pflag.ErrHelp) {
		return f, pflag.ErrHelp
	}
	s.VisitAll(func(fl *pflag.Flag) { f.effective[fl.Name] = withoutCredentials(fl.Value.String()) })
	return f, errors.Join(append(errs, f.validate())...)
}

// credentials match the user and password of URLs.
var credentials = regexp.MustCompile(`://[^,\s]*@`)

// withoutCredentials returns the value of a flag without the users and passwords of URLs: the port for metrics serves it.
func withoutCredentials(value string) string { return credentials.ReplaceAllString(value, "://...@") }

// newFlagSet returns a set that keeps the order in which flags are defined.
func newFlagSet(name string) *pflag.FlagSet {
	s := pflag.NewFlagSet(name, pflag.ContinueOnError)
	s.SortFlags = false
	return s
}

// readFlags sets flags from the command line and the environment. It returns all faults. They contain pflag.ErrHelp if
// the help was asked for and printed.
func readFlags(s *pflag.FlagSet, about string, groups []flagGroup, args []string, getenv func(string) string) []error {
	errs := setAll(s, args)
	if slices.Contains(errs, pflag.ErrHelp) {
		fmt.Fprint(os.Stderr, usage(about, groups))
		return errs
	}
	s.VisitAll(func(fl *pflag.Flag) {
		env := envName(fl.Name)
		if v := getenv(env); v != "" && !fl.Changed && !set(fl, v) {
			errs = append(errs, fmt.Errorf("%s=%q: want %s", env, v, kindOf(fl)))
		}
	})
	return errs
}

// helpWidth is the number of columns of --help.
const helpWidth = 120

// usage returns the text of --help.
func usage(about string, groups []flagGroup) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nEach flag can also be set in the environment: --tls-cert as KEYWARD_TLS_CERT.\n--version prints the version.\n", about)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.flags.FlagUsagesWrapped(helpWidth))
	}
	return b.String()
}
