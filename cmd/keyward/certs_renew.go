package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/certs"
)

// clusterRenewal renews certificates in Secrets of the process's namespace.
type clusterRenewal struct {
	CASecret string   // name of the Secret with the CA's certificate and key
	Secrets  []string // names of the Secrets with certificates of that CA
	Account  string   // folder of the service account: token, ca.crt, namespace
	certs.RenewOptions
}

// run renews what is due, the CA first, and prints a line for each Secret. A Secret that cannot be renewed does not
// stop the others.
func (r clusterRenewal) run(ctx context.Context, out io.Writer) error {
	if r.CASecret == "" || len(r.Secrets) == 0 {
		return errors.New("--ca-secret and --secret belong together: give both")
	}
	if err := r.Validate(); err != nil {
		return err
	}
	api, err := newSecretsAPI(r.Account)
	if err != nil {
		return err
	}
	pass := renewalPass{r.RenewOptions, api, out}
	ca, err := pass.renewCA(ctx, r.CASecret)
	if err != nil {
		return fmt.Errorf("renew the CA in Secret %s: %w", r.CASecret, err)
	}
	var errs []error
	for _, name := range r.Secrets {
		if err := pass.renew(ctx, ca, name); err != nil {
			errs = append(errs, fmt.Errorf("renew the certificate in Secret %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// renewalPass is one pass over the Secrets of a cluster.
type renewalPass struct {
	options certs.RenewOptions
	api     *secretsAPI
	out     io.Writer
}

// renewCA renews the CA in the Secret with this name if it is due, and returns it.
func (r renewalPass) renewCA(ctx context.Context, name string) (certs.Bundle, error) {
	s, err := r.api.get(ctx, name)
	if err != nil {
		return certs.Bundle{}, err
	}
	ca := certs.Bundle{Cert: s.entry("tls.crt"), Key: s.entry("tls.key")}
	cert, renewed, err := certs.RenewCA(ca, r.options)
	if err != nil {
		return certs.Bundle{}, err
	}
	ca.Cert = cert
	if renewed {
		s.set("tls.crt", cert)
		if err := r.api.update(ctx, name, s); err != nil {
			return certs.Bundle{}, err
		}
	}
	return ca, report(r.out, name, renewed, ca)
}

// renew renews the certificate in the Secret with this name if it is due.
func (r renewalPass) renew(ctx context.Context, ca certs.Bundle, name string) error {
	s, err := r.api.get(ctx, name)
	if err != nil {
		return err
	}
	b, renewed, err := certs.Renew(ca, certs.Bundle{Cert: s.entry("tls.crt"), Key: s.entry("tls.key"), CA: s.entry("ca.crt")}, r.options)
	if err != nil {
		return err
	}
	if renewed { // all three at once: a reader never sees a key of another certificate
		s.set("tls.crt", b.Cert)
		s.set("tls.key", b.Key)
		s.set("ca.crt", b.CA)
		if err := r.api.update(ctx, name, s); err != nil {
			return err
		}
	}
	return report(r.out, name, renewed, b)
}

// report prints when the certificate of a Secret expires.
func report(out io.Writer, name string, renewed bool, b certs.Bundle) error {
	pair, err := tls.X509KeyPair(b.Cert, b.Key)
	if err != nil {
		return err
	}
	what := "kept"
	if renewed {
		what = "renewed"
	}
	_, err = fmt.Fprintf(out, "%s: %s, ends %s\n", name, what, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	return err
}

// serviceAccount is the folder of a pod's token in Kubernetes.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// maxSecret is the largest answer of the API server that is read. A Secret has at most 1 MiB, in base64.
const maxSecret = 4 << 20

// secretsAPI reads and replaces Secrets of one namespace.
type secretsAPI struct {
	base, token string
	http        *http.Client
}

// newSecretsAPI reads the service account's folder and the environment variables of the API server's address.
func newSecretsAPI(account string) (*secretsAPI, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; without --ca-secret the certificates of --dir are renewed")
	}
	files := map[string]string{"token": "", "ca.crt": "", "namespace": ""}
	var errs []error
	for name := range files {
		raw, err := os.ReadFile(filepath.Join(account, name))
		files[name] = strings.TrimSpace(string(raw))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read the service account: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(files["ca.crt"])) {
		return nil, fmt.Errorf("read the service account: %s: no PEM certificate", filepath.Join(account, "ca.crt"))
	}
	return &secretsAPI{
		base:  "https://" + net.JoinHostPort(host, port) + "/api/v1/namespaces/" + url.PathEscape(files["namespace"]) + "/secrets/",
		token: files["token"],
		http:  &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}},
	}, nil
}

// secret is a Secret with all of its fields, so that an update changes only its data. Its resourceVersion makes an
// update fail after another update.
type secret map[string]any

func (s secret) entry(name string) []byte {
	data, _ := s["data"].(map[string]any)
	text, _ := data[name].(string)
	var raw []byte
	if b, err := json.Marshal(text); err != nil || json.Unmarshal(b, &raw) != nil { // base64, as JSON has bytes
		return nil
	}
	return raw
}

func (s secret) set(name string, raw []byte) {
	data, ok := s["data"].(map[string]any)
	if !ok {
		data = map[string]any{}
		s["data"] = data
	}
	data[name] = raw
}

func (a *secretsAPI) get(ctx context.Context, name string) (secret, error) {
	return a.do(ctx, http.MethodGet, name, nil)
}

func (a *secretsAPI) update(ctx context.Context, name string, s secret) error {
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = a.do(ctx, http.MethodPut, name, body)
	return err
}

func (a *secretsAPI) do(ctx context.Context, method, name string, body []byte) (secret, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+url.PathEscape(name), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "keyward") // the manager of the fields that it writes
	res, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxSecret))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		var status struct{ Message string }
		_ = json.Unmarshal(raw, &status) // the error has the status line in any case
		return nil, fmt.Errorf("%s %s: %s", method, res.Status, status.Message)
	}
	var s secret
	return s, json.Unmarshal(raw, &s)
}
