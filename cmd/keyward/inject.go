package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/ops/inject"
)

func newInject() *cobra.Command {
	o := inject.Options{Image: "ghcr.io/keyward/keyward:" + version, ModuleImage: "ghcr.io/keyward/keyward-module:" + version}
	var files, authorities []string
	noTLS := false
	cmd := &cobra.Command{
		Use:     "inject -f FILE",
		Short:   "Add the sidecar to the pods of Kubernetes manifests",
		Long:    helpText("inject"),
		Example: helpExamples("inject"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.TLS = !noTLS
			if o.Module != "" {
				if _, err := snippet.ModuleFor(o.Module); err != nil {
					return fmt.Errorf("--module: %w", err)
				}
			}
			if err := addAuthorities(&o, authorities); err != nil {
				return err
			}
			for _, file := range files {
				if err := injectFile(cmd, file, o); err != nil {
					return err
				}
			}
			return nil
		},
	}
	s := cmd.Flags()
	s.SortFlags = false
	s.StringArrayVarP(&files, "filename", "f", nil, "`file` of manifests, - for standard input; repeat it for more")
	s.StringVar(&o.Release, "release", "keyward", "full `name` of the chart's objects: that of the Service NAME-gossip without -gossip")
	s.StringVar(&o.Image, "image", o.Image, "the sidecar's `image`")
	s.StringVar(&o.PullPolicy, "pull-policy", "IfNotPresent", "its imagePullPolicy")
	s.StringVar(&o.EnvoyAdmin, "envoy-admin", "", "`host:port` of the admin page of the pod's Envoy, to drain it when the pod ends")
	s.StringVar(&o.Module, "module", "", "`version` of the pods' Envoy, such as 1.40, which gets the dynamic module and the sidecar's socket (docs/no-call.md#module)")
	s.StringVar(&o.ModuleImage, "module-image", o.ModuleImage, "with --module: the `image` of its files")
	s.StringVar(&o.ModuleEnvoy, "module-envoy", "envoy", "with --module: `name` of Envoy's container")
	s.StringVar(&o.CPU, "cpu", "20m", "CPU requested")
	s.StringVar(&o.MemoryRequest, "memory-request", "64Mi", "memory requested")
	s.StringVar(&o.Memory, "memory", "256Mi", "memory limit; about 120 bytes for each key, see --max-keys of the sidecar")
	s.StringArrayVar(&o.Args, "arg", nil, "additional `flag` of the sidecar; repeat it for more")
	s.StringVar(&o.RulesConfigMap, "rules", "", "`ConfigMap` of the rules (default RELEASE-rules)")
	s.StringVar(&o.GossipSecret, "gossip-secret", "", "`Secret` with gossip.key (default RELEASE-gossip)")
	s.StringVar(&o.TLSSecret, "tls-secret", "", "`Secret` with tls.crt, tls.key and ca.crt (default RELEASE-tls)")
	s.BoolVar(&noTLS, "no-tls", false, "the release has tls.mode: off")
	s.StringVar(&o.DataVolume, "data-volume", "emptyDir",
		"`volume` of the journal: emptyDir, hostPath, claim (keyward-data of the pods' StatefulSet), or none, as data.volume of the release")
	s.StringVar(&o.DataSize, "data-size", "2Gi", "with emptyDir: its `size`, as data.size of the release")
	s.StringVar(&o.DataPath, "data-path", "/var/lib/keyward", "with hostPath: `directory` of the node, which belongs to user 65532")
	s.BoolVar(&o.Federation, "federation", false, "the release has federation.region, so that the sidecar needs its layout")
	s.StringArrayVar(&authorities, "authority-secret", nil,
		"`NAME=SECRET/KEY`: the authority NAME of federation.authorities, whose URL is in a Secret; repeat it for more")
	s.BoolVar(&o.FederationPort, "federation-port", false, "the release has federation.listen.enabled, so that the sidecar serves other regions")
	s.IntVar(&o.Grace, "grace", 60, "minimum `seconds` that a pod has to stop")
	_ = cmd.MarkFlagRequired("filename") // the flag exists
	return cmd
}

// addAuthorities adds the values of --authority-secret to o.
func addAuthorities(o *inject.Options, values []string) error {
	for _, v := range values {
		a, err := inject.ParseAuthoritySecret(v)
		if err != nil {
			return fmt.Errorf("--authority-secret %w", err)
		}
		o.AuthoritySecrets = append(o.AuthoritySecrets, a)
	}
	if !o.Federation && (o.FederationPort || len(values) > 0) {
		return errors.New("--authority-secret and --federation-port need --federation")
	}
	return nil
}

// injectFile prints a file with the sidecar added, and warnings to standard error.
func injectFile(cmd *cobra.Command, file string, o inject.Options) error {
	text, err := readManifest(cmd.InOrStdin(), file)
	if err != nil {
		return err
	}
	out, notes, err := inject.Inject(text, o)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, n := range notes {
		fmt.Fprintln(cmd.ErrOrStderr(), n)
	}
	if len(notes) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "WARNING: %s: nothing in it has pods\n", file)
	}
	_, err = cmd.OutOrStdout().Write(out)
	return err
}

func readManifest(stdin io.Reader, file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(stdin)
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no file %s", file)
	}
	return b, err
}
