package settings

import (
	"fmt"
	"strings"
)

// Markdown is the manual's page of the environment.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# The environment of envoyproxy/ratelimit

Keyward reads the variables of ` + "`envoyproxy/ratelimit`" + `, by the same rules: booleans are ` + "`1`, `t`, `true`, `0`, `f`, `false`" + ` in any usual
case, durations are like ` + "`10s`" + `, maps like ` + "`name:value,name:value`" + `. A value that cannot be read stops the start, and all such values are
named at once. This page is generated from the table in ` + "`envoy/settings`" + `; a test keeps it up to date.

| variable | kind | default | what becomes of it | |
|---|---|---|---|---|
`)
	for _, v := range Table() {
		def := ""
		if v.Default != "" {
			def = "`" + v.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", v.Name, v.Kind(), def, v.Fate, v.Note)
	}
	b.WriteString(`
Libraries of ` + "`envoyproxy/ratelimit`" + ` read some more:

| variable | what becomes of it | |
|---|---|---|
| ` + "`DOG_STATSD_MOGRIFIER_<N>_PATTERN`, `_NAME`, `_TAGS`" + ` | honoured | For each N of USE_DOG_STATSD_MOGRIFIERS: a regular expression, the new name, and tags ` + "`name:value,...`; `$1` is a group" + `. |
| ` + "`STATSD_PROTOCOL`" + ` | honoured | ` + "`tcp` (default) or `udp`" + `, for statsd. |
| ` + "`DD_ENTITY_ID`, `DD_ENV`, `DD_SERVICE`, `DD_VERSION`" + ` | honoured | Tags of everything sent to DogStatsD. |
| ` + "`GOSTATS_FLUSH_INTERVAL_SECONDS`, `GOSTATS_LOGGING_SINK_DISABLED`" + ` | ignored | STATS_FLUSH_INTERVAL counts; statistics are never printed. |
| ` + "`OTEL_*`" + ` | ignored | No traces are written yet. |
`)
	return b.String()
}
