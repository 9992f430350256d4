package certs

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Info describes the certificates in Files.
type Info struct {
	Names      []string  // DNS names, IP addresses and URIs of the certificate
	NotAfter   time.Time // zero without a certificate
	CANotAfter time.Time // the latest of the CAs; zero without a CA
}

// Inspect reads the files. It does not verify the certificates.
func Inspect(f Files) (Info, error) {
	var info Info
	var faults []error
	if f.Cert != "" {
		chain, err := readChain(f.Cert)
		faults = append(faults, err)
		if len(chain) > 0 {
			info.Names, info.NotAfter = sansOf(chain[0]), chain[0].NotAfter
		}
	}
	if f.CA != "" {
		roots, err := readChain(f.CA)
		faults = append(faults, err)
		for _, c := range roots {
			if c.NotAfter.After(info.CANotAfter) {
				info.CANotAfter = c.NotAfter
			}
		}
	}
	return info, errors.Join(faults...)
}

// readChain returns all certificates of a PEM file.
func readChain(file string) (chain []*x509.Certificate, err error) {
	rest, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return chain, fmt.Errorf("%s: %w", file, err)
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, fmt.Errorf("%s: no PEM certificate found", file)
	}
	return chain, nil
}

// Metrics export when certificates expire and whether reloads succeed. It is safe for concurrent use.
type Metrics struct {
	watched map[string]Files
	reloads *prometheus.CounterVec
	expiry  *prometheus.Desc
}

// NewMetrics registers the metrics of the files of each kind, such as "member". The files are read at each scrape.
// The metric of a kind's CA has the kind with the suffix "_ca".
func NewMetrics(reg prometheus.Registerer, kinds map[string]Files) *Metrics {
	m := &Metrics{
		watched: kinds,
		reloads: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_certificate_reloads_total", Help: "Reloads of changed certificates, by result.",
		}, []string{"result"}),
	}
	const name, help = "keyward_certificate_expiry_timestamp_seconds",
		"Expiry of the certificate, Unix time; of a file with several CAs, the latest."
	m.expiry = prometheus.NewDesc(name, help, []string{"kind"}, nil)
	for _, result := range []string{"success", "failure"} {
		m.reloads.WithLabelValues(result)
	}
	if reg != nil {
		reg.MustRegister(m)
	}
	return m
}

// OnReload is the function for [Reload].
func (m *Metrics) OnReload(err error) {
	if err != nil {
		m.reloads.WithLabelValues("failure").Inc()
		return
	}
	m.reloads.WithLabelValues("success").Inc()
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.expiry }

// Collect implements prometheus.Collector. It skips files that cannot be read.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for kind, f := range m.watched {
		info, _ := Inspect(f)
		for label, end := range map[string]time.Time{kind: info.NotAfter, kind + "_ca": info.CANotAfter} {
			if !end.IsZero() {
				ch <- prometheus.MustNewConstMetric(m.expiry, prometheus.GaugeValue, float64(end.Unix()), label)
			}
		}
	}
}
