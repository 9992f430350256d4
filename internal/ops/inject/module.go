package inject

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// The parts of the dynamic module in pods.
const (
	moduleContainer = "keyward-module" // an init container, which copies the module's file
	socketVolume    = "keyward-module"
	filesVolume     = "keyward-modules"
	searchPath      = "ENVOY_DYNAMIC_MODULES_SEARCH_PATH"
)

// envoyParts are what Envoy's container needs for the module: where its file is, and the sidecar's socket at the default path of
// keyward envoy-config. Envoy does not mount the volume of the sidecar's admin socket.
const envoyParts = `env:
- {name: ` + searchPath + `, value: /modules}
volumeMounts:
- {name: ` + filesVolume + `, mountPath: /modules, readOnly: true}
- {name: ` + socketVolume + `, mountPath: /run/keyward, readOnly: true}
`

// addModule adds the module to a pod with the given lists, or removes it if there is none. first is the list of init containers,
// without Keyward's.
func (in *injector) addModule(first *yaml.Node, envoys []*yaml.Node, what string) error {
	remove(first, moduleContainer)
	for _, envoy := range envoys {
		if err := in.patchEnvoy(envoy); err != nil {
			return err
		}
	}
	if in.Module == "" {
		return nil
	}
	container, err := in.parse("module.yaml")
	if err != nil {
		return err
	}
	first.Content = slices.Insert(first.Content, 0, container)
	in.note("%s: module for Envoy %s added", what, in.Module)
	return nil
}

// patchEnvoy removes what a former call has added to Envoy's container, and adds it again with a module.
func (in *injector) patchEnvoy(envoy *yaml.Node) error {
	for key, names := range map[string][]string{"env": {searchPath}, "volumeMounts": {filesVolume, socketVolume}} {
		list := get(envoy, key)
		if list == nil || list.Kind != yaml.SequenceNode {
			continue
		}
		for _, name := range names {
			remove(list, name)
		}
	}
	if in.Module == "" {
		return nil
	}
	var parts yaml.Node
	if err := yaml.Unmarshal([]byte(envoyParts), &parts); err != nil {
		return err
	}
	for i := 0; i < len(parts.Content[0].Content); i += 2 {
		list := child(envoy, parts.Content[0].Content[i].Value, yaml.SequenceNode)
		list.Content, list.Style = append(list.Content, parts.Content[0].Content[i+1].Content...), list.Style&^yaml.FlowStyle
	}
	return nil
}

// envoysOf returns the containers of a pod that have the name of Envoy's.
func (in *injector) envoysOf(spec *yaml.Node) (all []*yaml.Node) {
	for _, list := range []string{"initContainers", "containers"} {
		if l := get(spec, list); l != nil {
			for _, c := range l.Content {
				if c.Kind == yaml.MappingNode && text(get(c, "name")) == in.ModuleEnvoy {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// envoyProxy changes an EnvoyProxy, in which Envoy Gateway has the pods of a Gateway. It returns the number of its pod templates.
func (in *injector) envoyProxy(o *yaml.Node, what string) (int, error) {
	spec := child(o, "spec", yaml.MappingNode)
	provider := child(spec, "provider", yaml.MappingNode)
	set(provider, "type", scalar("Kubernetes"))
	kubernetes := child(provider, "kubernetes", yaml.MappingNode)
	workload := get(kubernetes, "envoyDaemonSet")
	if workload == nil || workload.Kind != yaml.MappingNode {
		workload = child(kubernetes, "envoyDeployment", yaml.MappingNode)
	}
	pod := child(workload, "pod", yaml.MappingNode)
	return 1, in.add(target{
		labels: child(pod, "labels", yaml.MappingNode), first: child(workload, "initContainers", yaml.SequenceNode),
		volumes: child(pod, "volumes", yaml.SequenceNode), envoys: []*yaml.Node{child(workload, "container", yaml.MappingNode)},
	}, what)
}
