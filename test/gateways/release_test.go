package gateways

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/lab"
)

// release is Keyward as its chart installs it in the namespace of a gateway that has no rules of its own: all rules are in a file
// of the chart's ConfigMap. Its methods are for one goroutine.
type release struct {
	kube      *kubernetes
	namespace string
	dir       string   // folder of the rules and the volumes
	client    string   // key of the entry with the value of clientHeader
	objects   []object // of the chart

	// levels returns the entries below that of the route by which the gateway asks for a rule, which has this index.
	levels func(i int, r rule) []level

	routes map[string]*policy // whose rules are in force
}

// level is an entry of a descriptor in a file of rules. An empty value matches all values.
type level struct{ key, value string }

const (
	releaseName = "keyward"
	rulesDomain = "cases" // of all rules
)

// install creates the objects of the chart with a preset, except those of kinds that need controllers or the gateway's
// definitions. It returns when the API server has the kinds.
func (r *release) install(preset string) error {
	if err := r.writeRules(); err != nil {
		return err
	}
	var err error
	if r.objects, err = renderChart(r.namespace, "--set", "preset="+preset, "--set-file", `rules.cases\.yaml=`+r.path("rules", rulesFile)); err != nil {
		return err
	}
	return errors.Join(
		r.kube.apply(kubeNamespace(r.namespace)), r.kube.apply(ofKind(r.objects, "Secret", "ConfigMap", "Service")...),
		r.kube.apply(service(gatewayNamespace, applicationName, "http", 80), endpoints(gatewayNamespace, applicationName, "http", 3000, bridgeIP)),
	)
}

func (r *release) path(parts ...string) string {
	return filepath.Join(append([]string{r.dir}, parts...)...)
}

// tool returns the objects that keyward envoy-config prints for a gateway and the rules.
func (r *release) tool(gateway string, args ...string) ([]object, error) {
	return printObjects(append([]string{"--for", gateway, "--rules", r.path("rules"), "--namespace", r.namespace, "--timeout", callTimeout}, args...)...)
}

// printObjects returns the objects that keyward envoy-config prints.
func printObjects(args ...string) ([]object, error) {
	cmd := exec.Command(filepath.Join(programs, "keyward"), append([]string{"envoy-config"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("keyward envoy-config: %w: %s", err, &stderr)
	}
	return readObjects(text)
}

// applyNew applies objects of kinds that the API server has had for a moment only.
func (r *release) applyNew(ctx context.Context, objects ...object) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return lab.Await(ctx, "the gateway's kinds of objects", func(context.Context) error { return r.kube.apply(objects...) })
}

// set returns the StatefulSet of the members.
func (r *release) set() (s deployment, err error) {
	found := ofKind(r.objects, "StatefulSet")
	if len(found) != 1 {
		return s, fmt.Errorf("the chart has %d StatefulSets", len(found))
	}
	return s, decode(found[0], &s)
}

// volumes returns the folders of the volumes of the chart's pods, and of the certificates of the xDS server and of Envoy.
func (r *release) volumes(ctx context.Context) (map[string]string, error) {
	set, err := r.set()
	if err != nil {
		return nil, err
	}
	all, err := r.kube.folders(ctx, r.namespace, set.Spec.Template.Spec.Volumes, r.path("volumes"))
	if err != nil {
		return nil, err
	}
	all["keyward-rules"] = r.path("rules")
	for _, o := range ofKind(r.objects, "Secret") {
		name := o["metadata"].(object)["name"].(string)
		if all[name], err = r.kube.folder(ctx, r.namespace, "secrets", name, r.path("volumes")); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// workload implements gateway: the container of the chart's StatefulSet.
func (r *release) workload() (w workload, err error) {
	set, err := r.set()
	if err != nil {
		return w, err
	}
	c := set.Spec.Template.Spec.Containers[0]
	w = workload{
		command: c.Command, user: set.Spec.Template.Spec.SecurityContext.RunAsUser, mounts: map[string]string{},
		readiness: ":9090/readyz", metrics: ":9090", found: r.publish, preStop: c.Lifecycle.PreStop.Exec.Command, stateful: true,
	}
	for _, from := range c.EnvFrom {
		for _, o := range ofKind(r.objects, "ConfigMap") {
			if o["metadata"].(object)["name"] != from.ConfigMapRef.Name {
				continue
			}
			for name, value := range o["data"].(object) {
				w.env = append(w.env, envVar{Name: name, Value: fmt.Sprint(value)})
			}
		}
	}
	w.env = append(w.env, c.Env...)
	for _, m := range c.VolumeMounts {
		w.mounts[m.MountPath] = m.Name
	}
	return w, nil
}

// publish makes the gateway find these members.
func (r *release) publish(ready []string) error {
	return r.kube.apply(endpoints(r.namespace, releaseName, "grpc", 8081, ready...))
}

// counter implements gateway.
func (r *release) counter(route, client string) (domain string, entries []string) {
	return rulesDomain, []string{routeKey, route, r.client, client}
}

// writeRules writes the rules of all routes, as a kubelet updates the volume of a ConfigMap.
func (r *release) writeRules() error {
	all := []any{object{"key": r.client, "rate_limit": object{"unit": "hour", "requests_per_unit": defaultLimit}}}
	for _, route := range slices.Sorted(maps.Keys(r.routes)) {
		if len(r.routes[route].rules) == 0 {
			continue
		}
		var below []any
		var whole object // the limit of the route
		for i, rule := range r.routes[route].rules {
			limit := releaseLimit(rule)
			levels := r.levels(i, rule)
			if len(levels) == 0 {
				whole = limit
				continue
			}
			for k := len(levels) - 1; k >= 0; k-- {
				limit["key"] = levels[k].key
				if levels[k].value != "" {
					limit["value"] = levels[k].value
				}
				if k > 0 {
					limit = object{"descriptors": []any{limit}}
				}
			}
			below = append(below, limit)
		}
		top := object{"key": routeKey, "value": route}
		maps.Copy(top, whole)
		if len(below) > 0 {
			top["descriptors"] = below
		}
		all = append(all, top)
	}
	text, err := yaml.Marshal(object{"domain": rulesDomain, "descriptors": all})
	if err != nil {
		return err
	}
	return updateVolume(r.path("rules"), map[string][]byte{rulesFile: text})
}

// releaseLimit returns what a rule adds to its descriptor.
func releaseLimit(r rule) object {
	out := object{"rate_limit": object{"unit": strings.ToLower(r.unit), "requests_per_unit": r.limit}}
	if r.shadow {
		out["shadow_mode"] = true
	}
	if r.responseCost != nil { // as budgetDefaults for gateways that write the rules
		out["metadata"] = object{"keyward": object{"reserve": budgetReserve, "settle": "addend", "lapse": "release"}}
	}
	return out
}
