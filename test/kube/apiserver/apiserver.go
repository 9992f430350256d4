// Package apiserver starts a Kubernetes API server and etcd as local processes, for tests that have their own network namespace.
package apiserver

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"

	"github.com/keyward/keyward/internal/lab"
)

// Of every API server of the tests.
const (
	Port       = "16443"              // of the API server
	Token      = "admin-of-the-tests" // of the administrator
	ServiceNet = "10.96.0.0/16"       // addresses of Services

	etcdAddress = "http://127.0.0.1:12379"
	etcdPeers   = "http://127.0.0.1:12380"
)

// WriteFiles writes the servers' and their clients' files to dir: tokens.csv, accounts.key, which signs tokens of service accounts,
// and kubeconfig for the administrator, who reaches the API server at a host.
func WriteFiles(dir, host string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"tokens.csv":   Token + `,admin,1,"system:masters"` + "\n",
		"accounts.key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"kubeconfig": `{"apiVersion": "v1", "kind": "Config", "current-context": "here",
 "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
 "clusters": [{"name": "here", "cluster": {"server": "https://` + host + ":" + Port + `", "insecure-skip-tls-verify": true}}],
 "users": [{"name": "admin", "user": {"token": "` + Token + `"}}]}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Start starts etcd, which has to be on PATH, and the API server, a program, with the files of WriteFiles. It does not wait until they
// answer. ip is the address that the API server publishes; it listens at all addresses.
func Start(dir, logs, program, ip string) ([]*lab.Process, error) {
	file := func(name string) string { return filepath.Join(dir, name) }
	var all []*lab.Process
	for _, s := range []lab.Spec{
		{Name: "etcd", Path: "etcd", Args: []string{
			"--data-dir", file("etcd"), "--unsafe-no-fsync", "--listen-client-urls", etcdAddress, "--advertise-client-urls", etcdAddress,
			"--listen-peer-urls", etcdPeers, "--initial-advertise-peer-urls", etcdPeers, "--initial-cluster", "default=" + etcdPeers,
		}},
		{Name: "kube-apiserver", Path: program, Args: []string{
			"--etcd-servers=" + etcdAddress, "--bind-address=0.0.0.0", "--advertise-address=" + ip, "--secure-port=" + Port,
			"--cert-dir=" + file("certs"), "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + file("accounts.key"),
			"--service-account-signing-key-file=" + file("accounts.key"), "--token-auth-file=" + file("tokens.csv"), "--authorization-mode=RBAC",
			"--service-cluster-ip-range=" + ServiceNet, "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
		}},
	} {
		p, err := lab.StartProcess(logs, s)
		if err != nil {
			return all, fmt.Errorf("API server: %w", err)
		}
		all = append(all, p)
	}
	return all, nil
}
