package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// FileVariable is a variable that names a file or a folder, and what becomes of it when that is not there.
type FileVariable struct {
	Name     string
	Optional bool   // the file may be absent: then the variable is as if it were not set, with a warning
	When     string // when the file is read
	Absent   string // what becomes of a file that is not there, in a sentence
}

// Files lists the variables that name files. A file that decides who is let in or whom is trusted is never optional.
func Files() []FileVariable {
	const door, xds = "with GRPC_SERVER_USE_TLS", "with CONFIG_TYPE=GRPC_XDS_SOTW and CONFIG_GRPC_XDS_SERVER_USE_TLS"
	const stops, noRules, never = "Stops the start.", "No rules until the file is there: it is looked for every CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL, and the log names it.", "Nothing: it is never read."
	list := []FileVariable{
		{"PROMETHEUS_MAPPER_YAML", true, "at start", "Ignored, with a warning: the built-in mapping holds. A file that is there and cannot be read or is at fault stops the start."},
		{"GRPC_SERVER_TLS_CERT", false, door, stops},
		{"GRPC_SERVER_TLS_KEY", false, door, stops},
		{"GRPC_CLIENT_TLS_CACERT", false, door, stops + " Without it anybody would be let in."},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", false, xds, noRules},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", false, xds, noRules},
		{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", false, xds, noRules},
		{"GRPC_UDS", false, "at start", "The socket is made. A folder that is not there stops the start."},
		{"RUNTIME_ROOT", false, "with CONFIG_TYPE=FILE", "No rules until the folder is there; it is looked for every 5 s."},
	}
	for _, name := range []string{
		"REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT", "MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY", "MEMCACHE_TLS_CACERT",
	} {
		list = append(list, FileVariable{name, false, "never", never})
	}
	return list
}

// absent takes back variables that name optional files which are not there, and warns of them.
func (s *Settings) absent() {
	fields := map[string]*string{}
	for _, v := range Table() {
		if p, ok := v.at(s).(*string); ok {
			fields[v.Name] = p
		}
	}
	for _, f := range Files() {
		at := fields[f.Name]
		if !f.Optional || *at == "" {
			continue
		}
		if _, err := os.Stat(*at); errors.Is(err, fs.ErrNotExist) {
			s.warnings = append(s.warnings, fmt.Sprintf("%s is ignored: %s is not there", f.Name, *at))
			*at = ""
		}
	}
}
