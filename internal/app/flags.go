// Package app turns flags and environment into running parts, for cmd/sidecar and cmd/xds.
package app

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/browser"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// flags are the command-line flags of cmd/sidecar and cmd/xds. Each is also read from the environment as KEYWARD_ and
// its name in upper snake case; the command line wins.
type flags struct {
	Node            string        // stable name: the member's hash_key on the ring
	Gossip          string        // host:port to listen on for gossip, TCP and UDP
	Peer            string        // host:port to listen on for the other members' questions
	XDS             string        // host:port to serve xDS on; empty: none
	Metrics         string        // host:port of /metrics, /cluster and the probes
	Advertise       string        // address told to the others, when the listening ones are not reachable
	Join            []string      // gossip addresses: host:port or dns+host:port
	Cluster         string        // label: members of another label are refused, and count other keys
	Expect          int           // members to meet before deciding with the whole limit
	ExpectTimeout   time.Duration // after which fewer are enough; 0: never
	RLSAdvertise    string        // host:port of the RLS for other pods' Envoys
	RouteAdvertise  string        // host:port of this pod's Envoy, for ring-hash routes
	RLSDoor         string        // lean or grpc: whose HTTP/2 Envoys meet
	RLSPlaintext    bool          // serve RLSAdvertise without TLS, where a mesh encrypts
	DecisionTimeout time.Duration // a question's deadline when the caller sends none
	Partition       string        // what a part of a cut cluster may admit
	LostState       string        // what a key may admit after all who knew its count have died
	RingCapacity    int           // C: one more than the most weight the ring can hold
	NRefDecay       time.Duration // how long a dead member still counts for shares
	Admin           string        // unix socket of the commands that change something
	GossipKeyFile   string        // keys of the gossip, base64 one a line, the first encrypts
	TLS             certs.Files   // this member's certificate, its key and the CA of the others
	TLSPeerNames    []string      // names, one of which another member's certificate carries
	TLSEnvoyNames   []string      // names, one of which an Envoy's certificate carries; none: any of the CA's
	TLSBindName     string        // name with {node} in it that a member's certificate carries; empty: none
	ConnectionAge   time.Duration // after which connections between pods are replaced
	MaxConnections  int           // of each port for Envoys
	Insecure        bool          // no gossip key, no TLS between pods
	NegativeHits    string        // local, certificate or any: who may give hits back
	AllowedHosts    []string      // names by which the HTTP ports are asked, beside addresses and names of the cluster
	MaxKeys         int           // counters kept exactly
	DomainQuota     int           // of them, for one domain; 0: half
	Weight          uint32        // share of the ring
	LogDenials      float64       // refusals logged a second and rule; 0: none
	HotRate         float64       // questions a second below which no key is hot; 0: 5 % of what this machine could decide
	NoHot           bool          // no key is found hot
	RouteListener   string        // host:port of the ring-hash routes' listener in Envoys that ask for LDS
	RouteHeader     string        // header that the ring-hash routes hash
	RouteCluster    string        // the application's cluster in Envoys that ask owners directly and take hot keys' routes
	EnvoyConnect    time.Duration // connect timeout of the owner cluster in the served Envoys

	effective map[string]string // every flag's value by name
}

// define describes every flag once. The texts are what --help teaches.
func (f *flags) define(s *pflag.FlagSet, getenv func(string) string) {
	s.StringVar(&f.Node, "node", defaultNode(getenv), "stable name of this member, its place on the ring (default: POD_NAME, else the hostname)")
	s.StringVar(&f.Gossip, "gossip", ":7946", "`host:port` to listen on for gossip, TCP and UDP")
	s.StringVar(&f.Peer, "peer", ":7947", "`host:port` to listen on for the other members' questions")
	s.StringVar(&f.XDS, "xds", "", "`host:port` to serve xDS on; empty: none")
	s.StringVar(&f.Metrics, "metrics", ":9090", "`host:port` of /metrics, /cluster, /healthz and /readyz")
	s.StringVar(&f.Advertise, "advertise", "", "`address` told to the others (default: POD_IP, else the listening address)")
	s.StringSliceVar(&f.Join, "join", nil, "gossip addresses to join, host:port or dns+host:port, resolved again for ever; none: stand alone")
	s.StringVar(&f.Cluster, "cluster", "keyward", "`label` of the cluster: members of another label are refused")
	s.IntVar(&f.Expect, "expect", 0, "members to meet before deciding with the whole limit; until then each limit is divided by this number, for as long as that lasts")
	s.DurationVar(&f.ExpectTimeout, "expect-timeout", 0, "after this time fewer members than --expect are enough for the whole limit; 0: never")
	s.StringVar(&f.RLSAdvertise, "rls-advertise", "", "`host:port` to serve rate-limit questions of other pods' Envoys on, with mTLS")
	s.StringVar(&f.RouteAdvertise, "route-advertise", "", "`host:port` of this pod's Envoy, for ring-hash routes")
	s.BoolVar(&f.RLSPlaintext, "rls-plaintext", false, "serve --rls-advertise without TLS, where a mesh encrypts")
	s.StringVar(&f.RLSDoor, "rls-door", "lean", "`door` for rate-limit questions: lean, a loop made for them alone, or grpc, grpc-go's server, several times dearer")
	s.DurationVar(&f.DecisionTimeout, "decision-timeout", 12*time.Millisecond, "how long a question waits for a silent owner, when the caller sends no timeout (else 60 % of it); one that is alive has 1 s (else 90 %)")
	s.StringVar(&f.Partition, "partition", "share", "`policy` of a part of a cut cluster: share (its members' part of each limit), available (the whole limit) or quorum (the whole limit in a majority, else nothing)")
	s.StringVar(&f.LostState, "lost-state", "prorata", "`policy` of a key when all who knew its count have died: prorata (the limit's part of the time left in its window) or full (the whole limit again)")
	s.IntVar(&f.RingCapacity, "ring-capacity", ring.DefaultCapacity, "C: the members' weights sum to at most C-1; at most 8192")
	s.DurationVar(&f.NRefDecay, "nref-decay", time.Minute, "how long a dead member still counts when limits are shared out")
	s.StringVar(&f.Admin, "admin", DefaultAdmin, "unix `socket` of commands that change something, unix:PATH; empty: none")
	s.StringVar(&f.GossipKeyFile, "gossip-key-file", "", "`file` of gossip keys, base64, one a line; the first encrypts")
	s.StringVar(&f.TLS.Cert, "tls-cert", "", "`file` of this member's certificate (read again when it changes)")
	s.StringVar(&f.TLS.Key, "tls-key", "", "`file` of its key")
	s.StringVar(&f.TLS.CA, "tls-ca", "", "`file` of the CA that signs the other members and the Envoys")
	s.StringSliceVar(&f.TLSPeerNames, "tls-peer-names", nil, "URI or DNS `names`, one of which another member's certificate must carry (default: those of --tls-cert; for xds, which has a certificate of another kind: any)")
	s.StringSliceVar(&f.TLSEnvoyNames, "tls-envoy-names", nil, "URI or DNS `names`, one of which the certificate of an Envoy must carry on --rls-advertise and --xds, unless it is a member's (default: any certificate of the CA)")
	s.StringVar(&f.TLSBindName, "tls-bind-name", "", "`name` with {node} in it, which another member's certificate must carry with that member's own name there: spiffe://example.org/keyward/{node}")
	s.DurationVar(&f.ConnectionAge, "connection-age", time.Hour, "how long a connection between pods lives, so that who loses the right to a certificate does not stay")
	s.IntVar(&f.MaxConnections, "max-connections", 1024, "connections of each port for Envoys; one more takes the place of the one that was silent longest")
	s.BoolVar(&f.Insecure, "insecure", false, "no gossip key and no TLS between pods: for a laptop")
	s.StringVar(&f.NegativeHits, "allow-negative-hits", "local", "`callers` who may give hits back (is_negative_hits): local (with a client certificate, on a unix socket, or from this machine), certificate (with a client certificate) or any (/json too)")
	s.StringSliceVar(&f.AllowedHosts, "allowed-hosts", nil, "`names` by which the HTTP ports may be asked, beside IP addresses, localhost, the machine's name and names of the cluster (without a dot, or ending in .svc or .cluster.local); *.example.org: all names below it")
	s.IntVar(&f.MaxKeys, "max-keys", 500_000, "counters kept exactly; more go to a sketch that never admits too much")
	s.IntVar(&f.DomainQuota, "domain-quota", 0, "of them, at most so many for one domain (default: half)")
	s.Uint32Var(&f.Weight, "weight", 1, "share of the ring")
	s.Float64Var(&f.HotRate, "hot-rate", 0, "`questions` a second for one key below which it is never hot (default: 5 % of what this machine could decide, measured)")
	s.BoolVar(&f.NoHot, "no-hot", false, "find no keys hot: only rules that say so, and orders by hand, have them leased or routed elsewhere")
	s.Float64Var(&f.LogDenials, "log-denials", 1, "refusals to log a `second` for each rule, at LOG_LEVEL info, without callers' values; 0: none")
	s.StringVar(&f.RouteListener, "route-listener", "0.0.0.0:10000", "`host:port` of the listener that xDS serves for ring-hash routes")
	s.DurationVar(&f.EnvoyConnect, "envoy-connect-timeout", 25*time.Millisecond, "how long a served Envoy waits for a connection to an owner before it asks the heir")
	s.StringVar(&f.RouteHeader, "route-header", "x-api-key", "header that the ring-hash routes hash")
	s.StringVar(&f.RouteCluster, "route-cluster", "upstream", "`name` of the application's cluster in Envoys that ask owners directly and take their routes, with those of hot keys, from xDS")
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

// maxKeys is the largest --max-keys: at 48 bytes a key more than any machine has for a sidecar.
const maxKeys = 1 << 30

// Parse reads the command line and the environment and reports every fault at once. pflag.ErrHelp is returned when help
// was asked for and printed.
func Parse(name, about string, args []string, getenv func(string) string) (flags, error) {
	f := flags{effective: map[string]string{}}
	s := pflag.NewFlagSet(name, pflag.ContinueOnError)
	s.SortFlags = false
	f.define(s, getenv)
	s.Usage = func() {
		fmt.Fprintf(os.Stderr, "%s\n\nFlags, each also as environment (--node is KEYWARD_NODE):\n%s", about, s.FlagUsages())
	}
	errs := setAll(s, args)
	if slices.Contains(errs, pflag.ErrHelp) {
		s.Usage()
		return f, pflag.ErrHelp
	}
	s.VisitAll(func(fl *pflag.Flag) {
		env := envName(fl.Name)
		if v := getenv(env); v != "" && !fl.Changed && !set(fl, v) {
			errs = append(errs, fmt.Errorf("%s=%q: want %s", env, v, kindOf(fl)))
		}
		f.effective[fl.Name] = fl.Value.String()
	})
	return f, errors.Join(append(errs, f.validate())...)
}

func (f *flags) validate() error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if f.Node == "" {
		fail("--node is empty and the host has no name")
	}
	if len(f.Node) > ring.MaxID {
		fail("--node is %d bytes long: Envoy's ring takes at most %d", len(f.Node), ring.MaxID)
	}
	if err := membership.CheckID(ring.ID(f.Node)); err != nil {
		fail("--node: %w", err)
	}
	for _, a := range [...]struct{ name, addr string }{
		{"gossip", f.Gossip}, {"peer", f.Peer}, {"xds", f.XDS}, {"metrics", f.Metrics}, {"rls-advertise", f.RLSAdvertise},
		{"route-advertise", f.RouteAdvertise}, {"route-listener", f.RouteListener},
	} {
		if err := hostPort(a.addr); err != nil {
			fail("--%s %q: %w", a.name, a.addr, err)
		}
	}
	if host, _, err := net.SplitHostPort(f.RouteListener); err == nil && host != "" && net.ParseIP(host) == nil {
		fail("--route-listener %q: Envoy listens on IP addresses, not on names", f.RouteListener)
	}
	if _, ok := policies()[f.Partition]; !ok {
		fail("--partition %q: want share, available or quorum", f.Partition)
	}
	if _, ok := listenerKinds()[f.RLSDoor]; !ok {
		fail("--rls-door %q: want lean or grpc", f.RLSDoor)
	}
	if f.LostState != "prorata" && f.LostState != "full" {
		fail("--lost-state %q: want prorata or full", f.LostState)
	}
	if f.Admin != "" {
		if _, err := api.SocketPath(f.Admin); err != nil {
			fail("--admin %q: %w", f.Admin, err)
		}
	}
	return errors.Join(append(errs, f.validateAmounts(), f.validateSecurity())...)
}

// validateAmounts holds numbers and times to what makes sense.
func (f *flags) validateAmounts() error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if f.RingCapacity < 2 || f.RingCapacity > ring.MaxCapacity {
		fail("--ring-capacity %d: want 2 to %d", f.RingCapacity, ring.MaxCapacity)
	}
	switch {
	case f.Expect < 0 || f.Expect > ring.MaxCapacity:
		fail("--expect %d: want 0 to %d", f.Expect, ring.MaxCapacity)
	case f.Expect > 1 && len(f.Join) == 0:
		fail("--expect %d needs --join: without it this member is alone and admits whole limits", f.Expect)
	}
	switch {
	case f.ExpectTimeout < 0:
		fail("--expect-timeout %s: want a time, or 0", f.ExpectTimeout)
	case f.ExpectTimeout > 0 && f.Expect == 0:
		fail("--expect-timeout %s needs --expect", f.ExpectTimeout)
	}
	if f.DecisionTimeout <= 0 {
		fail("--decision-timeout %s: must be positive", f.DecisionTimeout)
	}
	if f.MaxKeys <= 0 || f.MaxKeys > maxKeys {
		fail("--max-keys %d: want 1 to %d", f.MaxKeys, maxKeys)
	}
	if f.DomainQuota < 0 || f.DomainQuota > f.MaxKeys {
		fail("--domain-quota %d: want 0 to --max-keys, %d", f.DomainQuota, f.MaxKeys)
	}
	if !(f.HotRate >= 0) || math.IsInf(f.HotRate, 0) {
		fail("--hot-rate %v: want questions a second, or 0", f.HotRate)
	}
	if !(f.LogDenials >= 0) || f.LogDenials > 1000 {
		fail("--log-denials %v: want 0 to 1000 a second", f.LogDenials)
	}
	if f.Weight < 1 {
		fail("--weight 0: must be at least 1")
	}
	return errors.Join(errs...)
}

// validateSecurity refuses every way to talk to other pods in the clear that was not asked for.
func (f *flags) validateSecurity() error {
	var errs []error
	set := 0
	for _, file := range []string{f.TLS.Cert, f.TLS.Key, f.TLS.CA} {
		if file != "" {
			set++
		}
	}
	if f.ConnectionAge < time.Second {
		errs = append(errs, fmt.Errorf("--connection-age %s: at least 1s", f.ConnectionAge))
	}
	if f.MaxConnections < 1 {
		errs = append(errs, fmt.Errorf("--max-connections %d: must be positive", f.MaxConnections))
	}
	if f.TLSBindName != "" && strings.Count(f.TLSBindName, nodePlaceholder) != 1 {
		errs = append(errs, fmt.Errorf("--tls-bind-name %q: want one %s in it", f.TLSBindName, nodePlaceholder))
	}
	if set == 0 && (f.TLSBindName != "" || len(f.TLSEnvoyNames) > 0) {
		errs = append(errs, errors.New("--tls-bind-name and --tls-envoy-names need --tls-cert, --tls-key and --tls-ca"))
	}
	if set != 0 && set != 3 {
		errs = append(errs, errors.New("--tls-cert, --tls-key and --tls-ca belong together: give all three"))
	}
	if _, ok := refunds()[f.NegativeHits]; !ok {
		errs = append(errs, fmt.Errorf("--allow-negative-hits %q: want local, certificate or any", f.NegativeHits))
	}
	if _, err := browser.NewHosts(f.AllowedHosts...); err != nil {
		errs = append(errs, fmt.Errorf("--allowed-hosts: %w", err))
	}
	if f.Insecure {
		return errors.Join(errs...)
	}
	if len(f.Join) > 0 && f.GossipKeyFile == "" {
		errs = append(errs, errors.New("--join needs --gossip-key-file, or --insecure on a laptop"))
	}
	if len(f.Join) > 0 && set == 0 {
		errs = append(errs, errors.New("--join needs --tls-cert, --tls-key and --tls-ca, or --insecure on a laptop"))
	}
	if f.RLSAdvertise != "" && set == 0 && !f.RLSPlaintext && !loopback(f.RLSAdvertise) {
		errs = append(errs, errors.New("--rls-advertise needs --tls-cert, --tls-key and --tls-ca, or --rls-plaintext where a mesh encrypts"))
	}
	return errors.Join(errs...)
}

// policies are the values of --partition.
func policies() map[string]handoff.PartitionPolicy {
	return map[string]handoff.PartitionPolicy{"share": handoff.PolicyShare, "available": handoff.PolicyAvailable, "quorum": handoff.PolicyQuorum}
}

// listenerKinds are the values of --rls-door.
func listenerKinds() map[string]rls.ServerKind {
	return map[string]rls.ServerKind{"lean": rls.InlineServer, "grpc": rls.GRPCGoServer}
}

// refunds are the values of --allow-negative-hits.
func refunds() map[string]rls.Refunds {
	return map[string]rls.Refunds{"local": rls.RefundsLocal, "certificate": rls.RefundsCertified, "any": rls.RefundsAny}
}

// hosts are the names by which the HTTP ports may be asked.
func (f *flags) hosts() browser.Hosts {
	h, _ := browser.NewHosts(f.AllowedHosts...) // validated
	return h
}

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
