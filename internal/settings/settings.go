// Package settings reads the environment of envoyproxy/ratelimit and says what becomes of each variable: one table
// binds every name to a field of [Settings], [Read] fills them, and [Markdown] prints the table for the manual.
package settings

import (
	"log/slog"
	"time"

	"github.com/keyward/keyward/internal/stats"
)

// Settings are the variables that have an effect, by what they are about.
type Settings struct {
	Server     ServerSettings
	Config     Config
	Behavior   Behavior
	Reloadable ReloadableSettings
	Stats      StatsSettings
	Tracing    Tracing

	set      map[string]bool
	warnings []string
}

// ServerSettings is where the program listens and how it logs.
type ServerSettings struct {
	Host      string // of /json and /healthcheck
	Port      int
	DebugHost string
	DebugPort int

	GRPCHost            string
	GRPCPort            int
	GRPCSocket          string // path of a unix socket that takes the place of host and port
	MaxConnectionAge    time.Duration
	MaxConnectionGrace  time.Duration
	UseTLS              bool
	TLSCert, TLSKey     string // paths
	ClientCA, ClientSAN string // path; name that a client's certificate must carry

	LogLevel  slog.Level // from LOG_LEVEL
	LogFormat string     // "text" or "json"
	logLevel  string
}

// Config is where the rules come from.
type Config struct {
	Type              string // FILE or GRPC_XDS_SOTW
	StartWithoutRules bool

	Root           string
	Subdirectory   string
	AppDirectory   string
	IgnoreDotFiles bool
	WatchRoot      bool

	XDS XDSSettings
}

// XDSSettings is the client that fetches rules from a management server.
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
	BackoffRandom  float64 // part of the interval that is random
	BackoffJitter  bool
	MaxMessage     int // bytes; 0 is gRPC's default
}

// Behavior is how questions are answered, fixed at start.
type Behavior struct {
	NearLimitRatio       float32
	LocalCacheBytes      int
	StopWhenOver         bool
	HealthyWithRulesOnly bool
	KeyPrefix            string
}

// ReloadableSettings are read again with every load of the rules, see [ReadReloadable].
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

// StatsSettings is where the statistics go.
type StatsSettings struct {
	Disabled   bool
	Statsd     bool // send to statsd: USE_STATSD, unless it is only a default beside another choice
	DogStatsd  bool
	Prometheus bool // asked for; this program always serves them

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
	Milliseconds   bool // response times are told to Prometheus in milliseconds

	mogrifiers []string
}

// Set says whether the variable was in the environment, so that a default can be told from a choice.
func (s *Settings) Set(name string) bool { return s.set[name] }

// Warnings are lines to log once at start: about variables that were set and have no effect here.
func (s *Settings) Warnings() []string { return s.warnings }
