package gateways

import (
	"context"
	"fmt"
)

// presetDeployment returns the StatefulSet of members in the objects of Keyward's chart.
func presetDeployment(chart []object) (set deployment, err error) {
	found := ofKind(chart, "StatefulSet")
	if len(found) != 1 {
		return set, fmt.Errorf("the chart has %d StatefulSets", len(found))
	}
	return set, decode(found[0], &set)
}

// presetVolumes returns the folders of the volumes of the chart's pods.
func presetVolumes(ctx context.Context, k *kubernetes, chart []object, ns, dir string) (map[string]string, error) {
	set, err := presetDeployment(chart)
	if err != nil {
		return nil, err
	}
	return k.folders(ctx, ns, set.Spec.Template.Spec.Volumes, dir)
}

// presetWorkload returns the container of the chart's StatefulSet.
func presetWorkload(chart []object) (w workload, err error) {
	set, err := presetDeployment(chart)
	if err != nil {
		return w, err
	}
	c := set.Spec.Template.Spec.Containers[0]
	w = workload{
		command: c.Command, user: set.Spec.Template.Spec.SecurityContext.RunAsUser, mounts: map[string]string{},
		readiness: ":9090/readyz", metrics: ":9090",
	}
	for _, from := range c.EnvFrom {
		for _, o := range ofKind(chart, "ConfigMap") {
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
