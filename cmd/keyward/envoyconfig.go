package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/ring"
)

// envoyConfigFlags are the flags that are not fields of snippet.Options.
type envoyConfigFlags struct {
	shape, part, rules, envoy string
	from, members             []string
	merge                     bool
	gateway                   string
	kube                      snippet.Kube
}

func newEnvoyConfig() *cobra.Command {
	var o snippet.Options
	var f envoyConfigFlags
	cmd := &cobra.Command{
		Use:     "envoy-config",
		Short:   "Print the Envoy configuration for your rules",
		Long:    helpText("envoy-config"),
		Example: helpExamples("envoy-config"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.fill(&o); err != nil {
				return err
			}
			text, warnings, err := f.generate(cmd, o)
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f.define(cmd, &o)
	return cmd
}

func (f *envoyConfigFlags) define(cmd *cobra.Command, o *snippet.Options) {
	s := cmd.Flags()
	s.SortFlags = false
	s.StringVar(&f.gateway, "for", "envoy", "`kind` of configuration: envoy, istio, envoy-gateway, contour or kgateway")
	s.StringVar(&f.shape, "shape", "owner-direct", "`shape`: owner-direct, routes, plain, rlqs or module")
	s.StringVar(&f.part, "part", "bootstrap", "`part` to print: bootstrap, filter, cluster, sds-client or sds-ca")
	s.StringVar(&f.rules, "rules", "", "`directory` or file of the rate limit rules")
	s.BoolVar(&f.merge, "merge-domain-configs", false, "merge files that define the same domain (MERGE_DOMAIN_CONFIG)")
	s.StringArrayVar(&f.from, "from", nil, "`KEY=SOURCE` of a descriptor key's value in a request; repeat it for each key")
	s.StringVar(&f.envoy, "envoy", "", "`file` of an Envoy configuration whose rate_limits define the sources instead of --from")
	s.StringVar(&o.Key, "key", "", "descriptor `key` whose owner is called, if the rules of a domain have several (default: the first rule's)")
	s.StringVar(&o.RouteHeader, "route-header", "", "shape routes, and --hot-routes: `header` whose value determines the owner (default: from the rules, else x-api-key)")
	s.BoolVar(&o.HotRoutes, "hot-routes", false, "take the listener's routes from xDS, which spreads hot keys over several members; with --routed, the edge Envoy does")
	s.BoolVar(&o.HotECDS, "hot-filters", false, "keep your own routes, and take filters from xDS that cap hot keys and spread them over several members")
	s.BoolVar(&o.Caps, "caps", false, "deny requests of keys that are far above their limit without a rate limit call; print again when a limit is raised")
	s.IntVar(&o.CapKeys, "cap-keys", 0, "with --caps: `number` of values of each rule that are followed at a time (default 10000)")
	s.BoolVar(&o.Delay, "delay", false, "delay requests of leaky buckets, with the sidecars' --delay-header x-envoy-fault-delay-request")
	s.StringVar(&o.Reserve, "reserve", "", "`source` of the hits that rules with reserve hold and spend: openai, or metadata:NAMESPACE of your own filters")
	s.StringVar(&o.Listen, "listen", "0.0.0.0:10000", "`host:port` of Envoy's listener")
	s.StringVar(&o.Admin, "envoy-admin", "127.0.0.1:9901", "`host:port` of Envoy's admin page")
	s.StringVar(&o.Upstream, "upstream", "127.0.0.1:8000", "`host:port` of the application")
	s.StringVar(&o.XDS, "xds", "", "`host:port` of the xDS server: cmd/xds, or a sidecar with --xds")
	s.StringVar(&o.ADS, "ads", "delta", "xDS `protocol`: delta or sotw")
	s.StringArrayVar(&f.members, "member", nil, "`NAME=host:port` of a sidecar, instead of --xds; repeat it for each")
	s.IntVar(&o.Capacity, "ring-capacity", ring.DefaultCapacity, "the sidecars' --ring-capacity, with --member or --sds")
	s.StringVar(&o.Sidecar, "sidecar", "127.0.0.1:8081", "shapes plain, rlqs and module: `host:port` of the rate limit service")
	s.StringVar(&o.ModuleSocket, "module-socket", "", "shape module: `path` of the sidecar's --module-socket, as Envoy sees it (default /run/keyward/module.sock)")
	s.StringVar(&o.ModuleAs, "module-as", "", "shape module: `kind` of extension: matcher, which costs less CPU time, or filter, which takes no hits of redirects and other requests without a cluster (default: matcher in a complete configuration for Envoy 1.38 or later, else filter)")
	s.BoolVar(&o.SidecarTLS, "sidecar-tls", false, "shapes plain, rlqs: use mTLS with the --tls-* files to call the sidecar")
	s.BoolVar(&o.FailureModeDeny, "failure-mode-deny", false, "deny requests whose rate limit call fails, instead of admitting them uncounted")
	s.BoolVar(&o.Routed, "routed", false, "shape plain: requests arrive by an edge Envoy's ring-hash routes; send the key, so that the sidecar counts direct hits")
	s.DurationVar(&o.Timeout, "timeout", 0, "time for a rate limit call; after 0.4 of it Envoy calls the successor (default 100ms)")
	s.DurationVar(&o.Connect, "connect-timeout", 0, "time to connect to an owner, with --member or --sds; xDS has its own (default 25ms)")
	s.StringVar(&o.TLSCert, "tls-cert", "", "`file` of this Envoy's certificate, as Envoy sees it")
	s.StringVar(&o.TLSKey, "tls-key", "", "`file` of its private key, as Envoy sees it")
	s.StringVar(&o.TLSCA, "tls-ca", "", "`file` of the CA of the sidecars and the xDS server, as Envoy sees it")
	s.StringArrayVar(&o.XDSNames, "xds-san", nil, "URI or DNS `name` that the xDS server's certificate must carry (default: any certificate of the CA)")
	s.StringArrayVar(&o.ServerNames, "tls-peer-name", nil, "URI or DNS `name` that a sidecar's certificate must carry, with --member or --sds")
	s.StringVar(&o.SDS, "sds", "", "`directory`, as Envoy sees it, of keyward_client.yaml and keyward_ca.yaml, which --part sds-client and sds-ca print: rotated certificates are used without a restart")
	s.StringVar(&o.EnvoyVersion, "envoy-version", "1.36", "oldest `version` of Envoy that must accept the configuration; from 1.40 on, Retry-After is sent. In shape module, the version of your Envoy")
	s.StringVar(&f.kube.Release, "release", "keyward", "--for: full `name` of the chart's objects")
	s.StringVar(&f.kube.Namespace, "namespace", "keyward", "--for: their `namespace`")
	s.StringVar(&f.kube.Gateway, "gateway", "gateway", "--for envoy-gateway, kgateway: `name` of the Gateway")
	s.StringVar(&f.kube.GatewayNamespace, "gateway-namespace", "", "--for: `namespace` of the gateway and of its resources (default: --namespace)")
	s.StringVar(&f.kube.Listener, "listener", "", "--for envoy-gateway: `name` of Envoy's listener (default GATEWAY-NAMESPACE/GATEWAY/http)")
	s.StringVar(&f.kube.Selector, "selector", "istio=ingressgateway", "--for istio: `label` of the gateway's pods")
	s.BoolVar(&f.kube.Plaintext, "no-tls", false, "--for: the release has tls.mode: off")
}

// generate returns the configuration of an Envoy, or the resources of a gateway.
func (f *envoyConfigFlags) generate(cmd *cobra.Command, o snippet.Options) ([]byte, []string, error) {
	if f.gateway == "envoy" {
		return snippet.Generate(o)
	}
	if cmd.Flags().Changed("part") {
		return nil, nil, errors.New("--part is of --for envoy")
	}
	if !cmd.Flags().Changed("shape") {
		o.Shape = "" // the gateway's best
	}
	if !cmd.Flags().Changed("sidecar") {
		o.Sidecar = ""
	}
	o.Gateway, o.Kube = snippet.Gateway(f.gateway), f.kube
	return snippet.Generate(o)
}

// fill sets the options that flags refer to by name or file.
func (f *envoyConfigFlags) fill(o *snippet.Options) error {
	var faults []error
	o.Shape, o.Part = snippet.Shape(f.shape), snippet.Part(f.part)
	o.From = map[string]string{}
	for _, text := range f.from {
		key, source, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			faults = append(faults, fmt.Errorf("--from %s: want KEY=SOURCE", text))
		}
		o.From[key] = source
	}
	for _, text := range f.members {
		name, address, ok := strings.Cut(text, "=")
		if !ok {
			faults = append(faults, fmt.Errorf("--member %s: want NAME=host:port", text))
		}
		o.Members = append(o.Members, snippet.StaticMember{ID: ring.ID(name), Address: address})
	}
	if f.envoy != "" {
		b, err := os.ReadFile(f.envoy)
		if err != nil {
			faults = append(faults, fmt.Errorf("read --envoy: %w", err))
		}
		o.Envoy = b
	}
	if o.ModuleSocket != "" {
		if err := module.CheckPath(o.ModuleSocket); err != nil {
			faults = append(faults, fmt.Errorf("--module-socket: %w", err))
		}
	}
	if f.rules == "" {
		return errors.Join(faults...)
	}
	files, err := readRules(f.rules)
	if err == nil {
		o.Rules, err = config.Load(files, config.Options{MergeDomains: f.merge})
	}
	return errors.Join(append(faults, err)...)
}
