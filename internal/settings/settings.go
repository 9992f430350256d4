// Package settings reads the environment variables of envoyproxy/ratelimit. One table binds every variable to a field
// of [Settings] and documents its effect. [Read] reads them, and [Markdown] prints the table for the manual.
package settings

import (
	"log/slog"
	"time"

	"github.com/keyward/keyward/internal/stats"
)

// Settings are the variables that have an effect, by topic.
type Settings struct {
	Server     ServerSettings
	Config     RuleSourceSettings
	Behavior   Behavior
	Reloadable ReloadableSettings
	Stats      StatsSettings
	Tracing    Tracing

	set      map[string]bool
	warnings []string
}

// ServerSettings are the addresses to listen on, and how to log.
type ServerSettings struct {
	Host      string // of /json and /healthcheck
	Port      int
	DebugHost string
	DebugPort int

	GRPCHost            string
	GRPCPort            int
	GRPCSocket          string // path of a unix socket, used instead of host and port
	MaxConnectionAge    time.Duration
	MaxConnectionGrace  time.Duration
	UseTLS              bool
	TLSCert, TLSKey     string // paths
	ClientCA, ClientSAN string // path; name that a client's certificate must carry

	LogLevel  slog.Level // from LOG_LEVEL
	LogFormat string     // "text" or "json"
	logLevel  string
}

// RuleSourceSettings is the source of the rules.
type RuleSourceSettings struct {
	Type              string // FILE or GRPC_XDS_SOTW
	StartWithoutRules bool

	Root           string
	Subdirectory   string
	AppDirectory   string
	IgnoreDotFiles bool
	WatchRoot      bool

	XDS XDSSettings
}

// XDSSettings configure the client that fetches rules from a management server.
type XDSSettings struct {
	NodeID        string
	NodeMetadata  string // key=value,key=value
	Server        string // host:port
	RetryInterval time.Duration
	Headers       map[string]string
	UseTLS        bool
	Cert, Key, CA string // paths
	ServerSAN     string

	BackoffInitial time.Duration
	BackoffMax     time.Duration
	BackoffRandom  float64 // fraction of the interval that is random
	BackoffJitter  bool
	MaxMessage     int // bytes; 0: gRPC's default
}

// Behavior is how requests are answered. It is fixed at start.
type Behavior struct {
	NearLimitRatio       float32
	LocalCacheBytes      int
	StopWhenOver         bool
	HealthyWithRulesOnly bool
	KeyPrefix            string
}

// ReloadableSettings are read again with every load of the rules: see [ReadReloadable].
type ReloadableSettings struct {
	Shadow          bool
	Quota           bool
	DynamicMetadata bool
	MergeDomains    bool
	Headers         bool
	LimitHeader     string
	RemainingHeader string
	ResetHeader     string
}

// StatsSettings are the destinations of the statistics.
type StatsSettings struct {
	Disabled   bool
	Statsd     bool // send to statsd: USE_STATSD, unless it is only a default next to another choice
	DogStatsd  bool
	Prometheus bool // USE_PROMETHEUS; metrics are always served

	Host          string
	Port          int
	Network       string // "tcp" or "udp", of statsd
	FlushInterval time.Duration
	Tags          map[string]string
	Mogrifiers    []stats.Mogrifier
	DogTags       []string // name:value of the DD_* variables

	PrometheusAddr string // host:port
	PrometheusPath string
	MapperFile     string
	Milliseconds   bool // export response times to Prometheus in milliseconds

	mogrifiers []string
}

// Set reports whether the variable was set, which distinguishes a default from a choice.
func (s *Settings) Set(name string) bool { return s.set[name] }

// Warnings returns lines to log once at start, about variables that are set and have no effect.
func (s *Settings) Warnings() []string { return s.warnings }
