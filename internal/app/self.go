package app

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/membership"
)

// selfStatus returns the parts of /v1/self that both programs have. c is nil before gossip has started.
func (f *flags) selfStatus(role membership.Role, started time.Time, c *cluster.Cluster) api.Self {
	s := api.Self{
		Node: f.Node, Role: role.String(), Version: Version, Time: time.Now().UnixNano(), Started: started, Flags: f.effective,
		Addrs: api.SelfAddresses{Gossip: f.Gossip, Peer: f.Peer, Metrics: f.Metrics, XDS: f.XDS},
		Cert:  f.certificate(), GossipBy: []string{}, Offsets: map[string]float64{}, Memory: memory(), Warnings: []string{},
	}
	if c != nil {
		me := c.View().SelfMember()
		s.Inst, s.GossipBy = hex(me.BootID), c.KeyFingerprints()
		for _, r := range c.Refusals() {
			s.GossipRefused = append(s.GossipRefused, api.SelfRefusal{From: r.From.String(), Reason: r.Reason, At: r.At})
		}
		s.Addrs.Gossip, s.Addrs.Peer, s.Addrs.Metrics, s.Addrs.RLS, s.Addrs.Route = c.Gossip(), me.Peer, me.Page, me.RLS, me.Route
	}
	if f.Insecure {
		s.Warnings = append(s.Warnings, "--insecure is set: gossip is unencrypted and peers do not use TLS")
	}
	if m := s.Memory; m.Limit > 0 && m.GoLimit == 0 {
		s.Warnings = append(s.Warnings, "the container's memory is limited and GOMEMLIMIT is not set")
	}
	return s
}

// selfStatus returns the document of /v1/self.
func (m *sidecar) selfStatus() api.Self {
	c := m.cluster.Load()
	s := m.Flags.selfStatus(membership.RoleMember, m.started, c)
	for id, ahead := range m.peer.ClockOffsets() {
		s.Offsets[string(id)] = ahead.Seconds()
	}
	if c != nil && c.View().Standalone {
		s.Warnings = append(s.Warnings, "standalone: without --join this member counts alone")
	}
	if s.Addrs.RLS == "" && len(m.Flags.Join) > 0 {
		s.Warnings = append(s.Warnings, "--rls-advertise is not set: Envoys of other pods cannot call this member directly")
	}
	s.Warnings, s.Data = append(s.Warnings, m.Settings.Warnings()...), m.selfData()
	return s
}

// certificate describes the current files of --tls-*, or returns nil without them.
func (f *flags) certificate() *api.SelfCertificate {
	if f.TLS.Empty() {
		return nil
	}
	s := &api.SelfCertificate{Names: []string{}, PeerNames: []string{}, CA: []string{}, Files: map[string]string{
		"cert": f.TLS.Cert, "key": f.TLS.Key, "ca": f.TLS.CA,
	}}
	names, err1 := f.peerNames()
	s.PeerNames = append(s.PeerNames, names...)
	if err := errors.Join(err1, readCertificate(s, f.TLS)); err != nil {
		s.Problem = err.Error()
	}
	return s
}

// readCertificate sets s from the files. It returns an error if they do not fit together.
func readCertificate(s *api.SelfCertificate, files certs.Files) error {
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return err
	}
	for _, u := range pair.Leaf.URIs {
		s.Names = append(s.Names, u.String())
	}
	s.Names, s.NotAfter = append(s.Names, pair.Leaf.DNSNames...), pair.Leaf.NotAfter
	text, err := os.ReadFile(files.CA)
	if err != nil {
		return err
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", files.CA, err)
		}
		roots.AddCert(ca)
		s.CA = append(s.CA, fingerprint(ca.Raw))
		if s.CANotAfter.IsZero() || ca.NotAfter.Before(s.CANotAfter) {
			s.CANotAfter = ca.NotAfter
		}
	}
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// fingerprint returns the first 8 hex digits of the SHA-256 of b.
func fingerprint(b []byte) string {
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%x", sum[:4])
}

// memory returns the memory of this process and its limits.
func memory() (m api.SelfMemory) {
	if n := debug.SetMemoryLimit(-1); n < math.MaxInt64 {
		m.GoLimit = uint64(n)
	}
	sample := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(sample)
	m.Used = sample[0].Value.Uint64()
	m.Limit = containerLimit("/sys/fs/cgroup")
	return m
}

// containerLimit returns the memory limit of a cgroup (version 2 or 1), or 0 without one.
func containerLimit(dir string) uint64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		if err != nil || n >= 1<<60 { // "max", or its equivalent in version 1
			return 0
		}
		return n
	}
	return 0
}
