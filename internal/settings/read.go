package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/stats"
)

// Getenv looks up a variable, as os.LookupEnv does.
type Getenv func(name string) (value string, set bool)

// Read reads all variables, and checks whether the optional files that they name exist. Its error lists every invalid
// variable. The Settings are complete in any case, with defaults for invalid values.
func Read(getenv Getenv) (Settings, error) {
	s := Settings{set: map[string]bool{}}
	var faults []error
	for _, v := range Table() {
		faults = append(faults, v.read(&s, getenv))
	}
	faults = append(faults, s.readOthers(getenv), s.derive(), s.check())
	s.warn()
	s.dropMissingFiles()
	return s, errors.Join(faults...)
}

// ReadReloadable reads the settings that may change while the program runs.
func ReadReloadable(getenv Getenv) (ReloadableSettings, error) {
	s := Settings{set: map[string]bool{}}
	var faults []error
	for _, v := range Table() {
		if v.Fate == Reread {
			faults = append(faults, v.read(&s, getenv))
		}
	}
	return s.Reloadable, errors.Join(faults...)
}

// read sets the field of v. It does not validate the value of an ignored variable.
func (v EnvVariable) read(s *Settings, getenv Getenv) error {
	if v.Default != "" {
		if err := parse(v.Default, v.at(s)); err != nil {
			return fault(v.Name, v.Default, err)
		}
	}
	value, set := getenv(v.Name)
	if !set {
		return nil
	}
	s.set[v.Name] = true
	if v.Fate == Accepted || v.Fate == Ignored {
		return nil
	}
	if err := parse(value, v.at(s)); err != nil {
		return fault(v.Name, value, err)
	}
	return nil
}

// fault returns an error with variable, value and cause. Headers may contain a password, so their value is not
// included.
func fault(name, value string, err error) error {
	if name == "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" {
		return fmt.Errorf("%s: want name:value,name:value", name)
	}
	return fmt.Errorf("%s=%q: %w", name, value, err)
}

// parse parses a value by the rules of envconfig. On an error the field keeps its value.
func parse(value string, at any) error {
	switch p := at.(type) {
	case *string:
		*p = value
	case *bool:
		return parseInto(p, value, strconv.ParseBool)
	case *int:
		return parseInto(p, value, func(s string) (int, error) {
			n, err := strconv.ParseInt(s, 0, strconv.IntSize)
			return int(n), err
		})
	case *int64:
		return parseInto(p, value, func(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) })
	case *float32:
		return parseInto(p, value, func(s string) (float32, error) {
			f, err := strconv.ParseFloat(s, 32)
			return float32(f), err
		})
	case *float64:
		return parseInto(p, value, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	case *time.Duration:
		return parseInto(p, value, time.ParseDuration)
	case *[]string:
		*p = nil
		if strings.TrimSpace(value) != "" {
			*p = strings.Split(value, ",")
		}
	case *map[string]string:
		return parseInto(p, value, parseMap)
	}
	return nil
}

func parseInto[T any](p *T, value string, parse func(string) (T, error)) error {
	v, err := parse(value)
	var num *strconv.NumError
	if errors.As(err, &num) {
		err = num.Err // fault adds the value
	}
	if err == nil {
		*p = v
	}
	return err
}

func parseMap(value string) (map[string]string, error) {
	m := map[string]string{}
	if strings.TrimSpace(value) == "" {
		return m, nil
	}
	for pair := range strings.SplitSeq(value, ",") {
		k, v, ok := strings.Cut(pair, ":")
		if !ok || strings.Contains(v, ":") {
			return nil, fmt.Errorf("invalid map item: %q", pair)
		}
		m[k] = v
	}
	return m, nil
}

// derive sets the fields that depend on several variables.
func (s *Settings) derive() error {
	st := &s.Stats
	if !s.set["USE_STATSD"] && (st.DogStatsd || st.Prometheus) {
		st.Statsd = false
	}
	if st.Disabled {
		st.Statsd, st.DogStatsd = false, false
	}
	s.Server.LogFormat = strings.ToLower(s.Server.LogFormat)
	if s.Server.LogFormat != "json" {
		s.Server.LogFormat = "text"
	}
	levels := map[string]slog.Level{
		"panic": slog.LevelError, "fatal": slog.LevelError, "error": slog.LevelError,
		"warn": slog.LevelWarn, "warning": slog.LevelWarn, "info": slog.LevelInfo, "debug": slog.LevelDebug,
		"trace": slog.LevelDebug,
	}
	level, ok := levels[strings.ToLower(s.Server.logLevel)]
	if !ok {
		s.Server.LogLevel = slog.LevelWarn
		return fault("LOG_LEVEL", s.Server.logLevel, errors.New("want panic, fatal, error, warn, info, debug or trace"))
	}
	s.Server.LogLevel = level
	return nil
}

// check returns errors for values that parse but make no sense.
func (s *Settings) check() error {
	var faults []error
	bad := func(is bool, name string, value any, cause string) {
		if is {
			faults = append(faults, fault(name, fmt.Sprint(value), errors.New(cause)))
		}
	}
	port := func(name string, n int) { bad(n < 0 || n > math.MaxUint16, name, n, "want a port, 0 to 65535") }
	port("PORT", s.Server.Port)
	port("DEBUG_PORT", s.Server.DebugPort)
	port("GRPC_PORT", s.Server.GRPCPort)
	port("STATSD_PORT", s.Stats.Port)
	bad(!slices.Contains([]string{"FILE", "GRPC_XDS_SOTW"}, s.Config.Type), "CONFIG_TYPE", s.Config.Type,
		"want FILE or GRPC_XDS_SOTW")
	bad(s.Stats.FlushInterval <= 0, "STATS_FLUSH_INTERVAL", s.Stats.FlushInterval, "must be more than 0")
	ratio := float64(s.Behavior.NearLimitRatio)
	bad(math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio < 0, "NEAR_LIMIT_RATIO", ratio, "want a number from 0 on")
	bad(s.Behavior.LocalCacheBytes < 0, "LOCAL_CACHE_SIZE_IN_BYTES", s.Behavior.LocalCacheBytes, "want 0 or more")
	bad(s.Config.XDS.MaxMessage < 0, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", s.Config.XDS.MaxMessage, "want 0 or more")
	bad(!strings.HasPrefix(s.Stats.PrometheusPath, "/"), "PROMETHEUS_PATH", s.Stats.PrometheusPath,
		"want a path that begins with /")
	bad(s.Server.UseTLS && s.Server.TLSCert == "", "GRPC_SERVER_TLS_CERT", "", "GRPC_SERVER_USE_TLS needs it")
	bad(s.Server.UseTLS && s.Server.TLSKey == "", "GRPC_SERVER_TLS_KEY", "", "GRPC_SERVER_USE_TLS needs it")
	bad(s.Stats.Network != "tcp" && s.Stats.Network != "udp", "STATSD_PROTOCOL", s.Stats.Network, "want tcp or udp")
	return errors.Join(faults...)
}

// readOthers reads the variables that libraries of envoyproxy/ratelimit read.
func (s *Settings) readOthers(getenv Getenv) error {
	s.Stats.Network = "tcp"
	if v, _ := getenv("STATSD_PROTOCOL"); v != "" {
		s.set["STATSD_PROTOCOL"] = true
		s.Stats.Network = v
	}
	for _, d := range [][2]string{{"DD_ENTITY_ID", "dd.internal.entity_id"}, {"DD_ENV", "env"},
		{"DD_SERVICE", "service"}, {"DD_VERSION", "version"}} {
		if v, _ := getenv(d[0]); v != "" {
			s.Stats.DogTags = append(s.Stats.DogTags, d[1]+":"+v)
		}
	}
	if !s.Stats.DogStatsd || s.Stats.Disabled {
		return nil
	}
	var faults []error
	for _, name := range s.Stats.mogrifiers {
		m, err := readMogrifier("DOG_STATSD_MOGRIFIER_"+name+"_", getenv)
		faults = append(faults, err)
		s.Stats.Mogrifiers = append(s.Stats.Mogrifiers, m)
	}
	return errors.Join(faults...)
}

func readMogrifier(prefix string, getenv Getenv) (stats.Mogrifier, error) {
	prefix = strings.ToUpper(prefix)
	var m stats.Mogrifier
	var faults []error
	bad := func(name, value string, err error) { faults = append(faults, fault(prefix+name, value, err)) }
	m.Pattern, _ = getenv(prefix + "PATTERN")
	m.Name, _ = getenv(prefix + "NAME")
	if m.Pattern == "" {
		bad("PATTERN", "", errors.New("want a regular expression"))
	} else if _, err := regexp.Compile(m.Pattern); err != nil {
		bad("PATTERN", m.Pattern, err)
	}
	if m.Name == "" {
		bad("NAME", "", errors.New("want a name"))
	}
	tags, _ := getenv(prefix + "TAGS")
	var err error
	if m.Tags, err = parseMap(tags); err != nil {
		bad("TAGS", tags, err)
	}
	for k, v := range m.Tags {
		if k == "" || v == "" {
			bad("TAGS", tags, errors.New("a tag needs a name and a value"))
			break
		}
	}
	return m, errors.Join(faults...)
}

// warn adds one warning for all ignored variables that are set.
func (s *Settings) warn() {
	var backend []string
	for _, v := range Table() {
		if v.Fate == Ignored && s.set[v.Name] {
			backend = append(backend, v.Name)
		}
	}
	if len(backend) > 0 {
		s.warnings = append(s.warnings, "ignored, because counters live in the members and not in a backend: "+strings.Join(backend, ", "))
	}
}
