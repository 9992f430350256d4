package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// FileVariable is a variable that names a file or folder.
type FileVariable struct {
	Name     string
	Optional bool   // if the file is missing, the variable is ignored with a warning
	When     string // when the file is read
	Absent   string // what happens if the file is missing, in a sentence
}

// Files returns the variables that name files. Files that decide which clients or servers are trusted are never
// optional.
func Files() []FileVariable {
	const tls, xds = "with GRPC_SERVER_USE_TLS", "with CONFIG_TYPE=GRPC_XDS_SOTW and CONFIG_GRPC_XDS_SERVER_USE_TLS"
	const stops, noRules, never = "Stops the start.",
		"No rules until the file exists. It is looked for every CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL, and the log names it.", "Nothing: it is never read."
	list := []FileVariable{
		{"PROMETHEUS_MAPPER_YAML", true, "at start",
			"Ignored, with a warning: the built-in mapping is used. An unreadable or invalid file stops the start."},
		{"GRPC_SERVER_TLS_CERT", false, tls, stops},
		{"GRPC_SERVER_TLS_KEY", false, tls, stops},
		{"GRPC_CLIENT_TLS_CACERT", false, tls, stops + " Without it, every client would be accepted."},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", false, xds, noRules},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", false, xds, noRules},
		{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", false, xds, noRules},
		{"GRPC_UDS", false, "at start", "The socket is created. A missing folder stops the start."},
		{"RUNTIME_ROOT", false, "with CONFIG_TYPE=FILE",
			"No rules until the folder is there; it is looked for every 5 s."},
	}
	for _, name := range []string{
		"REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT", "MEMCACHE_TLS_CLIENT_CERT",
		"MEMCACHE_TLS_CLIENT_KEY", "MEMCACHE_TLS_CACERT",
	} {
		list = append(list, FileVariable{name, false, "never", never})
	}
	return list
}

// dropMissingFiles clears variables that name missing optional files, and adds warnings.
func (s *Settings) dropMissingFiles() {
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
			s.warnings = append(s.warnings, fmt.Sprintf("%s is ignored: %s does not exist", f.Name, *at))
			*at = ""
		}
	}
}
