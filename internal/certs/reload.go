package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// material holds the contents of the files at one time. It is immutable.
type material struct {
	raw   [3][]byte        // contents of the certificate, key and CA files
	cert  *tls.Certificate // nil without a certificate file
	roots *x509.CertPool   // nil without a CA file
}

// store holds the newest usable material. A handshake never waits for another one's check of the files.
type store struct {
	files  Files
	reload Reload
	server func(*material) *tls.Config // set by Server, before the first handshake

	cur    atomic.Pointer[material]
	config atomic.Pointer[builtConfig]

	mu        sync.Mutex
	checkedAt time.Time // last check of the files; guarded by mu
	lastError string    // the last error that was reported; guarded by mu
}

// builtConfig is a server configuration and the material that it was built from.
type builtConfig struct {
	of     *material
	config *tls.Config
}

func open(f Files, r Reload) (*store, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, fmt.Errorf("certificate and key must be given together: certificate %q, key %q", f.Cert, f.Key)
	}
	if r.Interval <= 0 {
		r.Interval = time.Second
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	if r.OnReload == nil {
		r.OnReload = func(error) {}
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	s := &store{files: f, reload: r}
	m, err := f.load()
	if err != nil {
		return nil, err
	}
	s.cur.Store(m)
	s.checkedAt = r.Now()
	if m.expired(s.checkedAt) {
		r.Logger.Warn("certificate has expired", "file", f.Cert, "not_after", m.cert.Leaf.NotAfter)
	}
	return s, nil
}

func (s *store) now() time.Time { return s.reload.Now() }

// current returns the newest usable material. It checks the files if the last check was long ago.
func (s *store) current() *material {
	if s.mu.TryLock() {
		defer s.mu.Unlock()
		if now := s.now(); now.Sub(s.checkedAt) >= s.reload.Interval || now.Before(s.checkedAt) {
			s.checkedAt = now
			s.checkLocked(now)
		}
	}
	return s.cur.Load()
}

// currentServer returns the server configuration for the current material. It is built once per material.
func (s *store) currentServer() *tls.Config {
	m := s.current()
	if c := s.config.Load(); c != nil && c.of == m {
		return c.config
	}
	c := &builtConfig{m, s.server(m)}
	s.config.Store(c)
	return c.config
}

// checkLocked compares contents instead of modification times, so that it notices files that are replaced within a
// clock tick, by a symlink or in place. Three small reads per second cost little compared with a handshake.
func (s *store) checkLocked(now time.Time) {
	old := s.cur.Load()
	raw, err := s.files.read()
	if err == nil && same(raw, old.raw) {
		s.lastError = ""
		return
	}
	var m *material
	if err == nil {
		m, err = s.files.parse(raw)
	}
	if err == nil && m.expired(now) && !old.expired(now) {
		err = fmt.Errorf("%s: expired on %s", s.files.Cert, m.cert.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if err != nil {
		s.reportLocked(err)
		return
	}
	s.cur.Store(m)
	s.lastError = ""
	s.reload.Logger.Info("certificates reloaded", "cert", s.files.Cert, "ca", s.files.CA)
	s.reload.OnReload(nil)
}

func (s *store) reportLocked(err error) {
	if err.Error() == s.lastError {
		return
	}
	s.lastError = err.Error()
	s.reload.Logger.Error("certificate reload failed; the old certificates stay in use", "error", err)
	s.reload.OnReload(err)
}

func (f Files) load() (*material, error) {
	raw, err := f.read()
	if err != nil {
		return nil, err
	}
	return f.parse(raw)
}

func (f Files) read() (raw [3][]byte, err error) {
	var faults []error
	for i, name := range []string{f.Cert, f.Key, f.CA} {
		if name == "" {
			continue
		}
		if raw[i], err = os.ReadFile(name); err != nil {
			faults = append(faults, err)
		}
	}
	return raw, errors.Join(faults...)
}

func (f Files) parse(raw [3][]byte) (*material, error) {
	m := &material{raw: raw}
	var faults []error
	if f.Cert != "" {
		pair, err := tls.X509KeyPair(raw[0], raw[1])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s with key %s: %w", f.Cert, f.Key, err))
		}
		m.cert = &pair
	}
	if f.CA != "" {
		m.roots = x509.NewCertPool()
		if !m.roots.AppendCertsFromPEM(raw[2]) {
			faults = append(faults, fmt.Errorf("%s: no PEM certificate found", f.CA))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return m, nil
}

func (m *material) expired(now time.Time) bool {
	return m.cert != nil && now.After(m.cert.Leaf.NotAfter)
}

func same(a, b [3][]byte) bool {
	return bytes.Equal(a[0], b[0]) && bytes.Equal(a[1], b[1]) && bytes.Equal(a[2], b[2])
}
