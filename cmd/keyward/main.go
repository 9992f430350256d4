// Command keyward is the operators' tool: it checks rules, explains the ring, prints Envoy's configuration, makes demo
// certificates and shows the whole product at work on one machine.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// version is set by the linker (-ldflags "-X main.version=v1.2.3").
var version = "dev"

// errFailed ends a command with exit code 1 when it has already said why.
var errFailed = errors.New("failed")

func main() {
	root := newRoot()
	if filepath.Base(os.Args[0]) == "ratelimit_config_check" {
		root = newConfigCheck()
	}
	if err := root.Execute(); err != nil {
		if !errors.Is(err, errFailed) {
			fmt.Fprintln(os.Stderr, "keyward:", err)
		}
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "keyward",
		Short: "Global rate limits for Envoy, without Redis",
		Long: `Keyward counts every rate-limit key on exactly one sidecar: the one that Envoy's own RING_HASH load balancer
picks for it. This is the tool beside the sidecars.

Start here:
  keyward demo                         watch three sidecars and a real Envoy limit a dozen API keys
  keyward check ./config               are my envoyproxy/ratelimit rules fine, and is anything suspicious?
  keyward bounds ./config --members 5  what may a crash or a partition add to each limit?
  keyward envoy-config --help          the Envoy configuration that asks each key's owner directly
  keyward migrate --help               from envoyproxy/ratelimit to here: what maps, what goes away, the steps
  keyward mirror --help                compare envoyproxy/ratelimit and Keyward on your own traffic first
  keyward simulate --help              replay access logs: whom would new rules refuse?
  keyward ring owner --members a,b,c K which sidecar counts this key?
  keyward explain edge api_key=alice   which rule limits this, who counts it, and what would Envoy answer?
  keyward doctor                       what is wrong with the cluster, and what is to be done?
  keyward top                          which keys are hot, and what is done about them?
  keyward ask --help                   what does a rate-limit service answer to this question?
  keyward bench --help                 what does a decision cost, here and at another rate-limit service?
  keyward tap --over                   who is refused right now?
  keyward hot --help                   split, pin or cap a key by hand
  keyward inject -f deploy.yaml        add the sidecar to the pods of your manifests
  keyward drain                        hand the counters of the sidecar in this pod over, before it ends`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRing(), newCheck(), newBounds(), newEnvoyConfig(), newCerts(), newDemo(), newDrain(), newTop(), newTap(), newHot())
	root.AddCommand(newMigrate(), newMirror(), newSimulate()) // moving over
	root.AddCommand(newAsk(), newInject())
	root.AddCommand(newBench())
	root.AddCommand(newExplain(), newKeys(), newXDS(), newDoctor(), newMan()) // asking a cluster
	nameMembersAlike(root)
	return root
}
