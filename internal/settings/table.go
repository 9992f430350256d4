package settings

import "time"

// Fate describes how Keyward treats a variable.
type Fate string

// Values of Fate.
const (
	Honored  Fate = "honored"
	Reread   Fate = "honored, read again with every load of the rules"
	Accepted Fate = "accepted, without effect"
	Ignored  Fate = "ignored, with one warning"
)

// EnvVariable is one row of the table.
type EnvVariable struct {
	Name    string
	Default string // as written in the environment; "": the zero value of the kind
	Fate    Fate
	Note    string // its effect, in a sentence

	at func(*Settings) any // returns a pointer to the field
}

// Kind returns the type of the value.
func (v EnvVariable) Kind() string {
	switch v.at(&Settings{}).(type) {
	case *bool:
		return "bool"
	case *int, *int64:
		return "int"
	case *float32, *float64:
		return "number"
	case *time.Duration:
		return "duration"
	case *[]string:
		return "list"
	case *map[string]string:
		return "map"
	default:
		return "text"
	}
}

// Table returns every variable of envoyproxy/ratelimit.
func Table() []EnvVariable {
	var t []EnvVariable
	for _, part := range [][]EnvVariable{
		serverTable(), tlsTable(), configTable(), xdsTable(), behaviorTable(), headerTable(), statsTable(),
		prometheusTable(), tracingTable(),
		redisTable("REDIS_", "ratelimit"), redisOnlyTable(), redisTable("REDIS_PERSECOND_", "ratelimitpersecond"),
		memcacheTable(),
	} {
		t = append(t, part...)
	}
	return t
}

func serverTable() []EnvVariable {
	return []EnvVariable{
		{"HOST", "0.0.0.0", Honored, "Address of /json and /healthcheck.",
			func(s *Settings) any { return &s.Server.Host }},
		{"PORT", "8080", Honored, "Port of /json and /healthcheck.", func(s *Settings) any { return &s.Server.Port }},
		{"DEBUG_HOST", "0.0.0.0", Honored, "Address of the debug port.",
			func(s *Settings) any { return &s.Server.DebugHost }},
		{"DEBUG_PORT", "6070", Honored, "Port of /rlconfig, /stats and /debug/pprof.",
			func(s *Settings) any { return &s.Server.DebugPort }},
		{"GRPC_HOST", "0.0.0.0", Honored, "Address of the rate limit service.",
			func(s *Settings) any { return &s.Server.GRPCHost }},
		{"GRPC_PORT", "8081", Honored, "Port of the rate limit service.",
			func(s *Settings) any { return &s.Server.GRPCPort }},
		{"GRPC_UDS", "", Honored, "Path of a unix socket to listen on instead.",
			func(s *Settings) any { return &s.Server.GRPCSocket }},
		{"GRPC_MAX_CONNECTION_AGE", "24h", Honored, "A connection is drained after this time.",
			func(s *Settings) any { return &s.Server.MaxConnectionAge }},
		{"GRPC_MAX_CONNECTION_AGE_GRACE", "1h", Honored, "It is closed this much later.",
			func(s *Settings) any { return &s.Server.MaxConnectionGrace }},
		{"LOG_LEVEL", "WARN", Honored,
			"panic, fatal, error, warn, warning, info, debug or trace; the first two log errors, the last logs debug.",
			func(s *Settings) any { return &s.Server.logLevel }},
		{"LOG_FORMAT", "text", Honored, "`json`, or text.", func(s *Settings) any { return &s.Server.LogFormat }},
	}
}

func tlsTable() []EnvVariable {
	return []EnvVariable{
		{"GRPC_SERVER_USE_TLS", "false", Honored, "Serve the rate limit service with TLS.",
			func(s *Settings) any { return &s.Server.UseTLS }},
		{"GRPC_SERVER_TLS_CERT", "", Honored, "Certificate chain, reloaded when it changes.",
			func(s *Settings) any { return &s.Server.TLSCert }},
		{"GRPC_SERVER_TLS_KEY", "", Honored, "Private key, reloaded when it changes.",
			func(s *Settings) any { return &s.Server.TLSKey }},
		{"GRPC_CLIENT_TLS_CACERT", "", Honored, "Clients must present a certificate of this authority.",
			func(s *Settings) any { return &s.Server.ClientCA }},
		{"GRPC_CLIENT_TLS_SAN", "", Honored, "The name that a client's certificate must carry.",
			func(s *Settings) any { return &s.Server.ClientSAN }},
	}
}

func configTable() []EnvVariable {
	return []EnvVariable{
		{"CONFIG_TYPE", "FILE", Honored, "`FILE` or `GRPC_XDS_SOTW`.", func(s *Settings) any { return &s.Config.Type }},
		{"FORCE_START_WITHOUT_INITIAL_CONFIG", "false", Honored, "Serve before the first rules are loaded.",
			func(s *Settings) any { return &s.Config.StartWithoutRules }},
		{"RUNTIME_ROOT", "/srv/runtime_data/current", Honored, "Root of the rules' files.",
			func(s *Settings) any { return &s.Config.Root }},
		{"RUNTIME_SUBDIRECTORY", "", Honored, "Folder under the root.",
			func(s *Settings) any { return &s.Config.Subdirectory }},
		{"RUNTIME_APPDIRECTORY", "config", Honored, "Folder of the rules under that.",
			func(s *Settings) any { return &s.Config.AppDirectory }},
		{"RUNTIME_IGNOREDOTFILES", "false", Honored, "Skip files that begin with a dot.",
			func(s *Settings) any { return &s.Config.IgnoreDotFiles }},
		{"RUNTIME_WATCH_ROOT", "true", Honored,
			"Watch the root for a swapped symlink; false watches the folder of the rules for writes.",
			func(s *Settings) any { return &s.Config.WatchRoot }},
		{"MERGE_DOMAIN_CONFIG", "false", Reread, "Several files may name the same domain.",
			func(s *Settings) any { return &s.Reloadable.MergeDomains }},
	}
}

func xdsTable() []EnvVariable {
	return []EnvVariable{
		{"CONFIG_GRPC_XDS_NODE_ID", "default", Honored, "Node ID sent to the management server.",
			func(s *Settings) any { return &s.Config.XDS.NodeID }},
		{"CONFIG_GRPC_XDS_NODE_METADATA", "", Honored, "Node metadata, `key=value,key=value`.",
			func(s *Settings) any { return &s.Config.XDS.NodeMetadata }},
		{"CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", Honored, "Address of the management server.",
			func(s *Settings) any { return &s.Config.XDS.Server }},
		{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", Honored, "Time between attempts to connect.",
			func(s *Settings) any { return &s.Config.XDS.RetryInterval }},
		{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", Honored, "Metadata of the stream, `name:value,name:value`.",
			func(s *Settings) any { return &s.Config.XDS.Headers }},
		{"CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", Honored, "Connect with TLS.",
			func(s *Settings) any { return &s.Config.XDS.UseTLS }},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", Honored, "Certificate presented to the management server.",
			func(s *Settings) any { return &s.Config.XDS.Cert }},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", Honored, "Its private key.",
			func(s *Settings) any { return &s.Config.XDS.Key }},
		{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", Honored, "Authority of the management server's certificate.",
			func(s *Settings) any { return &s.Config.XDS.CA }},
		{"CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", Honored, "The name that its certificate must carry.",
			func(s *Settings) any { return &s.Config.XDS.ServerSAN }},
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", Honored, "First wait after a failed stream.",
			func(s *Settings) any { return &s.Config.XDS.BackoffInitial }},
		{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", Honored, "Longest wait.",
			func(s *Settings) any { return &s.Config.XDS.BackoffMax }},
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", Honored, "Fraction of the wait that is random.",
			func(s *Settings) any { return &s.Config.XDS.BackoffRandom }},
		{"XDS_CLIENT_BACKOFF_JITTER", "true", Honored, "Whether waits are random.",
			func(s *Settings) any { return &s.Config.XDS.BackoffJitter }},
		{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", Honored, "Largest message accepted from the management server.",
			func(s *Settings) any { return &s.Config.XDS.MaxMessage }},
	}
}

func behaviorTable() []EnvVariable {
	return []EnvVariable{
		{"NEAR_LIMIT_RATIO", "0.8", Honored, "Fraction of a limit above which hits count as near_limit.",
			func(s *Settings) any { return &s.Behavior.NearLimitRatio }},
		{"LOCAL_CACHE_SIZE_IN_BYTES", "0", Honored,
			"Above 0, a member caches denials of other owners until the window ends; one key takes about 64 bytes.",
			func(s *Settings) any { return &s.Behavior.LocalCacheBytes }},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", Honored,
			"When one descriptor of a call is over its limit, the others are not charged.",
			func(s *Settings) any { return &s.Behavior.StopWhenOver }},
		{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", Honored, "Unhealthy while no domain is loaded.",
			func(s *Settings) any { return &s.Behavior.HealthyWithRulesOnly }},
		{"CACHE_KEY_PREFIX", "", Honored,
			"Part of every counter's key, so that clusters with different prefixes never share counters.",
			func(s *Settings) any { return &s.Behavior.KeyPrefix }},
		{"EXPIRATION_JITTER_MAX_SECONDS", "300", Accepted,
			"Spreads the expiry of keys in Redis; it has no visible effect there either.",
			func(*Settings) any { return new(int64) }},
		{"BACKEND_TYPE", "redis", Accepted, "There is no backend; `redis` and `memcache` are both accepted.",
			func(*Settings) any { return new(string) }},
		{"SHADOW_MODE", "false", Reread, "Answer OK whatever the decision.",
			func(s *Settings) any { return &s.Reloadable.Shadow }},
		{"QUOTA_MODE", "false", Reread, "Treat every descriptor as a quota.",
			func(s *Settings) any { return &s.Reloadable.Quota }},
		{"RESPONSE_DYNAMIC_METADATA", "false", Reread,
			"Return the request and the rules' metadata as dynamic metadata.",
			func(s *Settings) any { return &s.Reloadable.DynamicMetadata }},
	}
}

func headerTable() []EnvVariable {
	return []EnvVariable{
		{"LIMIT_RESPONSE_HEADERS_ENABLED", "false", Reread,
			"Add the three headers below to responses; once on, they stay on.",
			func(s *Settings) any { return &s.Reloadable.Headers }},
		{"LIMIT_LIMIT_HEADER", "RateLimit-Limit", Reread, "Name of the header with the limit.",
			func(s *Settings) any { return &s.Reloadable.LimitHeader }},
		{"LIMIT_REMAINING_HEADER", "RateLimit-Remaining", Reread, "Name of the header with what remains.",
			func(s *Settings) any { return &s.Reloadable.RemainingHeader }},
		{"LIMIT_RESET_HEADER", "RateLimit-Reset", Reread,
			"Name of the header with the seconds until the window ends.",
			func(s *Settings) any { return &s.Reloadable.ResetHeader }},
	}
}

func statsTable() []EnvVariable {
	return []EnvVariable{
		{"USE_STATSD", "true", Honored,
			"Send statistics to statsd. With USE_DOG_STATSD or USE_PROMETHEUS, only if this variable is set.",
			func(s *Settings) any { return &s.Stats.Statsd }},
		{"STATSD_HOST", "localhost", Honored, "Host of statsd or DogStatsD.",
			func(s *Settings) any { return &s.Stats.Host }},
		{"STATSD_PORT", "8125", Honored, "Its port.", func(s *Settings) any { return &s.Stats.Port }},
		{"USE_DOG_STATSD", "false", Honored, "Send statistics to DogStatsD over UDP.",
			func(s *Settings) any { return &s.Stats.DogStatsd }},
		{"USE_DOG_STATSD_MOGRIFIERS", "", Honored, "Names N of the mogrifiers DOG_STATSD_MOGRIFIER_N_*, in order.",
			func(s *Settings) any { return &s.Stats.mogrifiers }},
		{"EXTRA_TAGS", "", Honored, "`name:value,name:value`: tags of every statistic; labels in Prometheus.",
			func(s *Settings) any { return &s.Stats.Tags }},
		{"STATS_FLUSH_INTERVAL", "10s", Honored, "Time between two flushes.",
			func(s *Settings) any { return &s.Stats.FlushInterval }},
		{"DISABLE_STATS", "false", Honored, "Do not send statistics; /metrics is still served.",
			func(s *Settings) any { return &s.Stats.Disabled }},
	}
}

func prometheusTable() []EnvVariable {
	return []EnvVariable{
		{"USE_PROMETHEUS", "false", Honored, "Serve /metrics; it is always served, also with statsd.",
			func(s *Settings) any { return &s.Stats.Prometheus }},
		{"PROMETHEUS_ADDR", ":9090", Honored, "Address of /metrics.",
			func(s *Settings) any { return &s.Stats.PrometheusAddr }},
		{"PROMETHEUS_PATH", "/metrics", Honored, "Its path.", func(s *Settings) any { return &s.Stats.PrometheusPath }},
		{"PROMETHEUS_MAPPER_YAML", "", Honored,
			"File of statsd-exporter mappings that replaces the built-in one; a missing file is ignored, with a warning.",
			func(s *Settings) any { return &s.Stats.MapperFile }},
		{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", Honored,
			"With the built-in mapping, export response times in milliseconds.",
			func(s *Settings) any { return &s.Stats.Milliseconds }},
	}
}
