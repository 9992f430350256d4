package app

import (
	"errors"
	"slices"

	"github.com/spf13/pflag"
)

// tlsFileFlags is the number of flags that name files of certificates.
const tlsFileFlags = 3

// coordinatorFlags are the command-line flags of cmd/coordinator. It shares with sidecars the flags of the layout, the
// metrics and the certificates; the others of them are not set.
type coordinatorFlags struct {
	flags
	Listen string
	Store  string // memory, a URL, or @FILE
	Init   bool
}

func (f *coordinatorFlags) define(s *pflag.FlagSet) []flagGroup {
	s.StringVar(&f.Listen, "listen", ":7948", "`host:port` to listen on for regions")
	s.StringVar(&f.Federation, "federation", "",
		"`file` with the regions that share limits: name, epoch, coordinator, and regions with name and weight, read again when it changes")
	f.defineMargin(s)
	s.StringVar(&f.Store, "store", "",
		"`where` lent hits are recorded: memory, redis://host:port, rediss://host:port (TLS), "+
			"postgres://user@host:port/database, or @FILE, which contains the URL with its password; after a restart, "+
			"memory lends only the rest of each window")
	s.BoolVar(&f.Init, "init", false,
		"lend windows that began before the start in full: for the first start with an empty store, never after a loss")
	s.StringVar(&f.Metrics, "metrics", ":9090", "`host:port` of /metrics, /healthz and /readyz; empty: none")
	s.StringVar(&f.TLS.Cert, "tls-cert", "", "`file` of this process's certificate, reloaded when it changes")
	s.StringVar(&f.TLS.Key, "tls-key", "", "`file` of its key")
	s.StringVar(&f.TLS.CA, "tls-ca", "",
		"`file` of the CA that signs the regions' certificates, which need a URI name that ends in /keyward/region/NAME")
	s.BoolVar(&f.Insecure, "insecure", false,
		"serve without TLS if no certificate is given, so that every client may name any region, as on a laptop")
	return []flagGroup{{"Flags", s}}
}

// parseCoordinator reads the command line and the environment. It returns all faults, joined, or pflag.ErrHelp after
// printing the help that was asked for.
func parseCoordinator(about string, args []string, getenv func(string) string) (*coordinatorFlags, error) {
	f := &coordinatorFlags{}
	s := newFlagSet("coordinator")
	errs := readFlags(s, about, f.define(s), args, getenv)
	if slices.Contains(errs, pflag.ErrHelp) {
		return f, pflag.ErrHelp
	}
	return f, errors.Join(append(errs, f.validate()...)...)
}

// validate returns all faults of the flags.
func (f *coordinatorFlags) validate() (e faults) {
	e.unless(f.Federation != "", "--federation is missing: the file that names the regions")
	e.unless(f.Store != "", "--store is missing: memory, a URL like redis://host:port or postgres://host:port/database, or @FILE")
	e.unless(f.Listen != "", "--listen is empty: want host:port")
	if err := hostPort(f.Listen); err != nil {
		e.add("--listen %q: %w", f.Listen, err)
	}
	if err := hostPort(f.Metrics); err != nil {
		e.add("--metrics %q: %w", f.Metrics, err)
	}
	f.validateMargin(&e)
	f.validateTLS(&e)
	e.unless(f.tlsFiles() > 0 || f.Insecure,
		"--tls-cert, --tls-key and --tls-ca are missing: give all three, or --insecure on a laptop")
	return e
}
