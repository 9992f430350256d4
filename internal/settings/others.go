package settings

// Unread is the fate of variables that are not read.
const Unread Fate = "ignored"

// Other is a row of variables that libraries of envoyproxy/ratelimit read. <N> and * in a name mean any text. A name
// that begins with _ replaces the end of the first name.
type Other struct {
	Names []string
	Fate  Fate
	Note  string // in a sentence
}

// Others returns the variables that are not in Table.
func Others() []Other {
	return []Other{
		{[]string{"DOG_STATSD_MOGRIFIER_<N>_PATTERN", "_NAME", "_TAGS"}, Honored,
			"For each N of USE_DOG_STATSD_MOGRIFIERS: a regular expression, the new name, and tags `name:value,...`; `$1` is a group."},
		{[]string{"STATSD_PROTOCOL"}, Honored, "`tcp` (default) or `udp`, for statsd."},
		{[]string{"DD_ENTITY_ID", "DD_ENV", "DD_SERVICE", "DD_VERSION"}, Honored,
			"Tags of everything sent to DogStatsD."},
		{[]string{"GOSTATS_FLUSH_INTERVAL_SECONDS", "GOSTATS_LOGGING_SINK_DISABLED"}, Unread,
			"STATS_FLUSH_INTERVAL applies; statistics are never printed."},
		{[]string{"OTEL_*"}, Honored, "With TRACING_ENABLED: where traces go, as the OpenTelemetry SDK reads them."},
	}
}
