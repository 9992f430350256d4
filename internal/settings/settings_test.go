package settings

import (
	"flag"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	upstream "github.com/envoyproxy/ratelimit/src/settings"

	"github.com/keyward/keyward/internal/stats"
)

var update = flag.Bool("update", false, "write docs/environment.md")

func env(pairs ...string) Getenv {
	m := map[string]string{}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		m[k] = v
	}
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

// names are all variables of envoyproxy/ratelimit, listed here so that none is dropped from the table unnoticed.
const names = `HOST PORT DEBUG_HOST DEBUG_PORT GRPC_UDS GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL LOG_FORMAT CONFIG_TYPE
FORCE_START_WITHOUT_INITIAL_CONFIG CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL
CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_USE_TLS
CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN
XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER
XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS USE_STATSD STATSD_HOST STATSD_PORT EXTRA_TAGS
STATS_FLUSH_INTERVAL DISABLE_STATS USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML
PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES
RUNTIME_WATCH_ROOT EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO CACHE_KEY_PREFIX BACKEND_TYPE
STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER
HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_TLS
REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_PIPELINE_WINDOW
REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE
REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH REDIS_PERSECOND_TLS REDIS_SENTINEL_AUTH
REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT
REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_TIMEOUT REDIS_PERSECOND_TIMEOUT
REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL
REDIS_STARTUP_MAX_ELAPSED_TIME MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS
MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION SHADOW_MODE QUOTA_MODE
RESPONSE_DYNAMIC_METADATA MERGE_DOMAIN_CONFIG TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE
TRACING_SERVICE_INSTANCE_ID TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE`

func TestTableNamesAll(t *testing.T) {
	want := map[string]bool{}
	for _, n := range strings.Fields(names) {
		want[n] = true
	}
	if len(want) != 114 {
		t.Errorf("the list has %d names, want 114", len(want))
	}
	got := map[string]bool{}
	for _, v := range Table() {
		if got[v.Name] {
			t.Errorf("%s is listed twice", v.Name)
		}
		got[v.Name] = true
		if v.Note == "" || v.Fate == "" {
			t.Errorf("%s: nothing says what becomes of it", v.Name)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("the table and the list differ: %d and %d names", len(got), len(want))
		for n := range want {
			if !got[n] {
				t.Errorf("missing: %s", n)
			}
		}
	}
}

// The settings structure of envoyproxy/ratelimit is the oracle for names, kinds and defaults.
func TestTableAgreesWithUpstream(t *testing.T) {
	table := map[string]EnvVariable{}
	for _, v := range Table() {
		table[v.Name] = v
	}
	kinds := map[string]string{
		"string": "text", "int": "int", "int64": "int", "bool": "bool", "float32": "number", "float64": "number",
		"time.Duration": "duration", "[]string": "list", "map[string]string": "map",
	}
	seen := 0
	for f := range reflect.TypeFor[upstream.Settings]().Fields() {
		name := f.Tag.Get("envconfig")
		if name == "" {
			continue
		}
		seen++
		v, ok := table[name]
		switch {
		case !ok:
			t.Errorf("%s is not in the table", name)
		case v.Default != f.Tag.Get("default"):
			t.Errorf("%s: default %q, want %q", name, v.Default, f.Tag.Get("default"))
		case v.Kind() != kinds[f.Type.String()]:
			t.Errorf("%s: kind %s, want %s", name, v.Kind(), f.Type)
		}
	}
	if seen < 100 {
		t.Errorf("found only %d variables in the oracle", seen)
	}
}

func TestDefaults(t *testing.T) {
	s, err := Read(env())
	if err != nil {
		t.Fatal(err)
	}
	if s.Server.GRPCPort != 8081 || s.Server.Host != "0.0.0.0" || s.Server.LogLevel != slog.LevelWarn || s.Server.MaxConnectionAge != 24*time.Hour {
		t.Errorf("server: %+v", s.Server)
	}
	if !s.Stats.Statsd || s.Stats.FlushInterval != 10*time.Second || s.Stats.Network != "tcp" || s.Behavior.NearLimitRatio != 0.8 {
		t.Errorf("stats: %+v", s.Stats)
	}
	if s.Reloadable.LimitHeader != "RateLimit-Limit" || s.Config.Root != "/srv/runtime_data/current" || !s.Config.WatchRoot {
		t.Errorf("%+v %+v", s.Reloadable, s.Config)
	}
	if s.Set("PORT") || len(s.Warnings()) != 0 {
		t.Errorf("nothing was set, and yet: %v", s.Warnings())
	}
}

// Each value is parsed exactly as envoyproxy/ratelimit parses it, or refused where it is refused.
func TestParsesAsUpstream(t *testing.T) {
	rows := []struct{ name, value string }{
		{"USE_PROMETHEUS", "1"}, {"USE_PROMETHEUS", "t"}, {"USE_PROMETHEUS", "TRUE"}, {"USE_PROMETHEUS", "True"}, {"USE_PROMETHEUS", "F"},
		{"USE_PROMETHEUS", "0"}, {"USE_PROMETHEUS", "yes"}, {"USE_PROMETHEUS", "on"}, {"USE_PROMETHEUS", ""}, {"USE_PROMETHEUS", " true"},
		{"STATSD_PORT", "0x1f90"}, {"STATSD_PORT", "010"}, {"STATSD_PORT", "1_0"}, {"STATSD_PORT", "8e3"}, {"STATSD_PORT", ""}, {"STATSD_PORT", "80 "},
		{"STATS_FLUSH_INTERVAL", "1m30s"}, {"STATS_FLUSH_INTERVAL", "10"}, {"STATS_FLUSH_INTERVAL", "1.5h"}, {"STATS_FLUSH_INTERVAL", ""},
		{"NEAR_LIMIT_RATIO", "0.75"}, {"NEAR_LIMIT_RATIO", "1e-1"}, {"NEAR_LIMIT_RATIO", "x"}, {"NEAR_LIMIT_RATIO", "0.1"},
		{"EXTRA_TAGS", "a:b,c:d"}, {"EXTRA_TAGS", "a:b:c"}, {"EXTRA_TAGS", "a"}, {"EXTRA_TAGS", ""}, {"EXTRA_TAGS", "a:,:b"}, {"EXTRA_TAGS", " "},
		{"USE_DOG_STATSD_MOGRIFIERS", "a, b"}, {"USE_DOG_STATSD_MOGRIFIERS", ""}, {"LOCAL_CACHE_SIZE_IN_BYTES", "99999999999999999999"},
		{"STATSD_HOST", ""}, {"STATSD_HOST", " x "},
	}
	for _, r := range rows {
		t.Run(r.name+"="+r.value, func(t *testing.T) {
			t.Setenv(r.name, r.value)
			theirs, refused := upstreamRead()
			ours, err := Read(os.LookupEnv)
			if (err != nil) != refused {
				t.Fatalf("error %v, theirs refused: %v", err, refused)
			}
			if err != nil {
				if !strings.Contains(err.Error(), r.name) {
					t.Errorf("error does not name the variable: %v", err)
				}
				return
			}
			same := []bool{
				ours.Stats.Prometheus == theirs.UsePrometheus, ours.Stats.Port == theirs.StatsdPort, ours.Stats.FlushInterval == theirs.StatsFlushInterval,
				ours.Behavior.NearLimitRatio == theirs.NearLimitRatio, maps.Equal(ours.Stats.Tags, theirs.ExtraTags), ours.Stats.Host == theirs.StatsdHost,
				strings.Join(ours.Stats.mogrifiers, "|") == strings.Join(theirs.UseDogStatsdMogrifiers, "|"),
			}
			for i, ok := range same {
				if !ok {
					t.Errorf("field %d differs: %+v", i, ours.Stats)
				}
			}
		})
	}
}

func upstreamRead() (s upstream.Settings, refused bool) {
	defer func() { refused = recover() != nil }()
	return upstream.NewSettings(), false
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := Read(env("PORT=eighty", "GRPC_PORT=99999", "SHADOW_MODE=maybe", "LOG_LEVEL=loud", "CONFIG_TYPE=ETCD", "STATS_FLUSH_INTERVAL=0s",
		"GRPC_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:Bearer:hunter2", "REDIS_POOL_SIZE=many",
		"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=a", "DOG_STATSD_MOGRIFIER_A_PATTERN=("))
	if err == nil {
		t.Fatal("no error")
	}
	text := err.Error()
	for _, want := range []string{
		`PORT="eighty": invalid syntax`, `GRPC_PORT="99999"`, `SHADOW_MODE="maybe"`, `LOG_LEVEL="loud"`, `CONFIG_TYPE="ETCD"`, `STATS_FLUSH_INTERVAL="0s"`,
		"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
		`DOG_STATSD_MOGRIFIER_A_PATTERN="("`, "DOG_STATSD_MOGRIFIER_A_NAME",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %s:\n%s", want, text)
		}
	}
	for _, no := range []string{"hunter2", "REDIS"} {
		if strings.Contains(text, no) {
			t.Errorf("says %s:\n%s", no, text)
		}
	}
}

func TestSinks(t *testing.T) {
	rows := []struct {
		env         string
		statsd, dog bool
	}{
		{"", true, false},
		{"USE_STATSD=false", false, false},
		{"USE_PROMETHEUS=true", false, false},
		{"USE_PROMETHEUS=true USE_STATSD=true", true, false},
		{"USE_DOG_STATSD=true", false, true},
		{"USE_DOG_STATSD=true USE_STATSD=true DISABLE_STATS=1", false, false},
	}
	for _, r := range rows {
		s, err := Read(env(strings.Fields(r.env)...))
		if err != nil || s.Stats.Statsd != r.statsd || s.Stats.DogStatsd != r.dog {
			t.Errorf("%s: statsd %v, dogstatsd %v, %v", r.env, s.Stats.Statsd, s.Stats.DogStatsd, err)
		}
	}
}

func TestMogrifiers(t *testing.T) {
	s, err := Read(env("USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=two,one",
		`DOG_STATSD_MOGRIFIER_TWO_PATTERN=^a\.(.*)$`, "DOG_STATSD_MOGRIFIER_TWO_NAME=b.$1", "DOG_STATSD_MOGRIFIER_TWO_TAGS=x:$1,y:z",
		"DOG_STATSD_MOGRIFIER_ONE_PATTERN=c", "DOG_STATSD_MOGRIFIER_ONE_NAME=d", "DD_ENV=prod"))
	if err != nil {
		t.Fatal(err)
	}
	want := []stats.Mogrifier{
		{Pattern: `^a\.(.*)$`, Name: "b.$1", Tags: map[string]string{"x": "$1", "y": "z"}},
		{Pattern: "c", Name: "d", Tags: map[string]string{}},
	}
	if !reflect.DeepEqual(s.Stats.Mogrifiers, want) {
		t.Errorf("got %+v", s.Stats.Mogrifiers)
	}
	if !reflect.DeepEqual(s.Stats.DogTags, []string{"env:prod"}) {
		t.Errorf("tags %v", s.Stats.DogTags)
	}
}

func TestWarnings(t *testing.T) {
	s, err := Read(env("REDIS_URL=redis:6379", "REDIS_PERSECOND=true", "MEMCACHE_HOST_PORT=m:1", "TRACING_ENABLED=true", "BACKEND_TYPE=redis", "REDIS_AUTH=hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	w := s.Warnings()
	if len(w) != 1 || !strings.Contains(w[0], "REDIS_URL, REDIS_AUTH, REDIS_PERSECOND, MEMCACHE_HOST_PORT") || !s.Tracing.Enabled {
		t.Errorf("warnings %q", w)
	}
	if strings.Contains(strings.Join(w, ""), "hunter2") {
		t.Error("a password is in the log")
	}
	s, _ = Read(env("TRACING_ENABLED=false", "TRACING_SERVICE_NAME=x"))
	if len(s.Warnings()) != 0 {
		t.Errorf("warnings %q", s.Warnings())
	}
}

// A missing mapper file is ignored with a warning. An existing one is kept, whatever it contains.
func TestOptionalFiles(t *testing.T) {
	dir := t.TempDir()
	there, gone := filepath.Join(dir, "there.yaml"), filepath.Join(dir, "no-volume", "gone.yaml")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{there: there, dir: dir, gone: ""} {
		s, err := Read(env("PROMETHEUS_MAPPER_YAML=" + file))
		if err != nil {
			t.Fatal(err)
		}
		if s.Stats.MapperFile != want {
			t.Errorf("%s: file %q", file, s.Stats.MapperFile)
		}
		w := s.Warnings()
		if (len(w) == 1) != (want == "") || want == "" && (!strings.Contains(w[0], "PROMETHEUS_MAPPER_YAML") || !strings.Contains(w[0], gone)) {
			t.Errorf("%s: warnings %q", file, w)
		}
	}
}

// Every variable whose name suggests a path is listed in Files, and files with keys or authorities are not optional.
func TestFilesAreDecidedAbout(t *testing.T) {
	path := regexp.MustCompile(`_(CERT|KEY|CACERT|YAML|UDS|ROOT)$`)
	listed := map[string]bool{}
	for _, f := range Files() {
		listed[f.Name] = true
		if f.Optional && strings.Contains(f.Name, "TLS") {
			t.Errorf("%s must not be optional", f.Name)
		}
	}
	known := map[string]bool{"RUNTIME_WATCH_ROOT": true} // no path
	for _, v := range Table() {
		if path.MatchString(v.Name) && !known[v.Name] && !listed[v.Name] {
			t.Errorf("%s: not in Files", v.Name)
		}
		delete(listed, v.Name)
	}
	if len(listed) > 0 {
		t.Errorf("not in Table: %v", listed)
	}
}

func TestReadSwitches(t *testing.T) {
	sw, err := ReadReloadable(env("SHADOW_MODE=true", "LIMIT_LIMIT_HEADER=X-Limit", "PORT=bad"))
	want := ReloadableSettings{Shadow: true, LimitHeader: "X-Limit", RemainingHeader: "RateLimit-Remaining", ResetHeader: "RateLimit-Reset"}
	if err != nil || sw != want {
		t.Errorf("%+v, %v", sw, err)
	}
	if _, err = ReadReloadable(env("QUOTA_MODE=x")); err == nil {
		t.Error("a fault goes unnoticed")
	}
}

func TestManualIsUpToDate(t *testing.T) {
	const file = "../../docs/environment.md"
	if *update {
		if err := os.WriteFile(file, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Markdown() {
		t.Errorf("%s is out of date: go test ./internal/settings -update", file)
	}
}

// No environment makes Read panic, and after an error the settings are still usable.
func FuzzRead(f *testing.F) {
	for _, s := range []string{"", "true", "0x10", "a:b", "-1", "1e400", "(", "10s", "NaN"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		s, _ := Read(func(string) (string, bool) { return value, true })
		if s.Server.LogFormat != "text" && s.Server.LogFormat != "json" {
			t.Errorf("log format %q", s.Server.LogFormat)
		}
	})
}
