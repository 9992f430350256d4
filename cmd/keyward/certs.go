package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/internal/certs"
)

func newCerts() *cobra.Command {
	var dir string
	var o certs.DemoOptions
	var r clusterRenewal
	cmd := &cobra.Command{
		Use:     "certs",
		Short:   "Create a demo CA, certificates for sidecars, xDS and Envoy, and a gossip key",
		Long:    helpText("certs"),
		Example: helpExamples("certs"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.CASecret != "" || len(r.Secrets) > 0 {
				r.Lifetime, r.Now = o.Lifetime, time.Now()
				return r.run(cmd.Context(), cmd.OutOrStdout())
			}
			if err := certs.MakeDemo(dir, o); err != nil {
				return err
			}
			if err := makeGossipKey(filepath.Join(dir, "gossip.key")); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "certificates and gossip key are in %s\n", dir)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "certs", "`directory` to write to")
	f.StringSliceVar(&o.Hosts, "host", nil, "host `names` and addresses in addition to localhost, 127.0.0.1 and ::1")
	f.StringSliceVar(&o.Regions, "region", nil, "`names` of regions: also write region-NAME.crt and .key for the sidecars of each")
	f.BoolVar(&o.Renew, "renew", false, "keep the existing CA and create new certificates")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace the existing CA: the certificates that it has signed become invalid")
	f.DurationVar(&o.Lifetime, "lifetime", 365*24*time.Hour, "how long new certificates are valid")
	f.StringVar(&r.CASecret, "ca-secret", "", "`Secret` with tls.crt and tls.key of the CA, to renew certificates in Secrets")
	f.StringSliceVar(&r.Secrets, "secret", nil, "`Secrets` with tls.crt, tls.key and ca.crt, to be renewed")
	f.DurationVar(&r.Before, "before", 30*24*time.Hour, "renew certificates that expire within this time")
	f.StringVar(&r.Account, "service-account", serviceAccount, "`folder` of the pod's token, ca.crt and namespace")
	return cmd
}

// makeGossipKey writes a new AES-256 key, unless the file exists: replacing the key would partition a running cluster.
func makeGossipKey(file string) error {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make a gossip key: %w", err)
	}
	_, err = fmt.Fprintln(f, base64.StdEncoding.EncodeToString(key))
	return errors.Join(err, f.Close())
}
