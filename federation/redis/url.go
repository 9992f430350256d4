package redis

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// layout is how the used hits of a window are stored.
type layout string

const (
	keyward    layout = "keyward"    // in the hash of the window
	envoyproxy layout = "envoyproxy" // in the counter of envoyproxy/ratelimit
)

// units are the windows of envoyproxy/ratelimit: a second, minute, hour, day, week, month and year.
var units = map[time.Duration]bool{
	time.Second: true, time.Minute: true, time.Hour: true, day: true, 7 * day: true, 30 * day: true, 365 * day: true,
}

const day = 24 * time.Hour

// accepts reports whether requests like r can be recorded.
func (l layout) accepts(r *federation.PoolRequest) bool {
	return l == keyward || !r.Approximate && r.Name != "" && r.Rule.Algorithm == limit.FixedWindow && units[r.Rule.Window]
}

// server is the content of a URL.
type server struct {
	address            string // host:port
	username, password string
	database           int
	tls                *tls.Config // nil: no TLS
	wait               int64
	layout             layout
}

// parseURL parses the URL of a server. Its errors do not contain the URL, which may contain a password.
func parseURL(text string, config *tls.Config) (s server, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return s, errors.New("malformed URL; use redis://user:password@host:port/database, with special characters as %XX")
	}
	s = server{address: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379")), username: u.User.Username(), layout: keyward}
	s.password, _ = u.User.Password()
	switch {
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return s, fmt.Errorf("unknown scheme %q in the URL; use redis or rediss", u.Scheme)
	case u.Hostname() == "":
		return s, errors.New("no host in the URL")
	case u.Scheme == "rediss":
		s.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		if config != nil {
			s.tls = config.Clone()
		}
		s.tls.ServerName = cmp.Or(s.tls.ServerName, u.Hostname())
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		if s.database, err = strconv.Atoi(path); err != nil || s.database < 0 {
			return s, errors.New("the path of the URL is not a database's number")
		}
	}
	return s, s.parseQuery(u.Query())
}

func (s *server) parseQuery(query url.Values) (err error) {
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case "wait":
			if s.wait, err = strconv.ParseInt(value, 10, 32); err != nil || s.wait < 0 {
				return fmt.Errorf("wait=%s in the URL is not a number of replicas", value)
			}
		case "layout":
			if s.layout = layout(value); s.layout != keyward && s.layout != envoyproxy {
				return fmt.Errorf("unknown layout=%s in the URL; use keyward or envoyproxy", value)
			}
		default:
			return fmt.Errorf("unknown parameter %s in the URL; wait and layout are known", name)
		}
	}
	return nil
}
