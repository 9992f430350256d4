package gateways

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// The pod of Envoy, and what the webhook of Envoy AI Gateway adds to it.
const (
	dataPod         = "gateway-envoy"
	processorName   = "ai-gateway-extproc"
	processorSecret = gatewayName + "-" + gatewayNamespace
	socketVolume    = "ai-gateway-extproc-uds"
)

// start implements gateway: the pod has the containers of the Deployment that Envoy Gateway makes, with the changes of the webhook.
func (g *aiGateway) start(ctx context.Context) error {
	if !g.running {
		if err := errors.Join(g.startController(ctx), g.startControl(ctx)); err != nil {
			return err
		}
	}
	envoy, processor, volumes, err := g.createPod(ctx)
	if err != nil {
		return err
	}
	if volumes[socketVolume], err = g.emptyVolume(processor.SecurityContext.RunAsUser); err != nil {
		return err
	}
	g.processor = &pod{
		Name: "gateway-extproc", Host: dataPod, User: processor.SecurityContext.RunAsUser, Env: []string{"PATH=/bin"},
		Command: append([]string{"/extproc"}, processor.Args...), Mounts: map[string]string{"/extproc": g.programs["extproc"]},
	}
	for _, m := range processor.VolumeMounts {
		g.processor.Mounts[m.MountPath] = volumes[m.Name]
	}
	g.mountSecrets = g.followSecret(envoyGatewayNamespace, processorSecret, volumes["ai-gateway-"+processorSecret])
	if err := g.processor.start(); err != nil {
		return err
	}
	if err := g.awaitProcessor(ctx); err != nil {
		return err
	}
	g.data = g.envoyPod(envoy, volumes, dataPod, g.ip)
	if err := g.data.start(); err != nil {
		return err
	}
	return g.data.awaitPort(ctx, g.address())
}

// createPod creates the pod of the Deployment on the API server, which asks the webhook, and returns its containers and the folders of
// its volumes. The webhook changes nothing before the controller has written the processor's Secret.
func (g *aiGateway) createPod(ctx context.Context) (envoy, processor container, volumes map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	const secrets = "/api/v1/namespaces/" + envoyGatewayNamespace + "/secrets/"
	if err := lab.Await(ctx, "the Secret of the processor", func(ctx context.Context) error {
		return g.kube.get(ctx, secrets+processorSecret, &object{})
	}); err != nil {
		return envoy, processor, nil, err
	}
	var list struct{ Items []object }
	query := "labelSelector=gateway.envoyproxy.io%2Fowning-gateway-name%3D" + gatewayName
	if err := g.kube.get(ctx, "/apis/apps/v1/namespaces/"+envoyGatewayNamespace+"/deployments?"+query, &list); err != nil {
		return envoy, processor, nil, err
	}
	if len(list.Items) != 1 {
		return envoy, processor, nil, fmt.Errorf("there are %d Deployments of Envoy", len(list.Items))
	}
	if err := g.rolledOut(ctx, list.Items[0]); err != nil {
		return envoy, processor, nil, err
	}
	o := list.Items[0]["spec"].(object)["template"].(object)
	o["apiVersion"], o["kind"] = "v1", "Pod"
	meta := o["metadata"].(object)
	meta["name"], meta["namespace"] = dataPod, envoyGatewayNamespace
	if err := g.kube.remove(o); err != nil && !errors.Is(err, errNotFound) {
		return envoy, processor, nil, err
	}
	if err := g.kube.apply(o); err != nil {
		return envoy, processor, nil, err
	}
	var made struct {
		Spec struct {
			Containers     []container
			InitContainers []container `yaml:"initContainers"`
			Volumes        []podVolume
		}
	}
	if err := g.kube.get(ctx, "/api/v1/namespaces/"+envoyGatewayNamespace+"/pods/"+dataPod, &made); err != nil {
		return envoy, processor, nil, err
	}
	byName := func(all []container, name string) container {
		i := slices.IndexFunc(all, func(c container) bool { return c.Name == name })
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("the pod has no container %s", name))
			return container{}
		}
		return all[i]
	}
	envoy, processor = byName(made.Spec.Containers, "envoy"), byName(made.Spec.InitContainers, processorName)
	if err != nil {
		return envoy, processor, nil, err
	}
	volumes, err = g.kube.folders(ctx, envoyGatewayNamespace, made.Spec.Volumes, g.dir("volumes"))
	return envoy, processor, volumes, err
}

// rolledOut writes the status of a Deployment, as Kubernetes' controller does when all pods exist. The gateway's controller waits for it.
func (g *aiGateway) rolledOut(ctx context.Context, d object) error {
	meta := d["metadata"].(object)
	name, _ := meta["name"].(string)
	body, err := json.Marshal(object{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": name, "namespace": envoyGatewayNamespace},
		"status": object{"observedGeneration": meta["generation"], "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1},
	})
	if err != nil {
		return err
	}
	_, err = g.kube.call(ctx, http.MethodPatch, "/apis/apps/v1/namespaces/"+envoyGatewayNamespace+"/deployments/"+name+"/status?fieldManager=tests&force=true", body)
	return err
}

// emptyVolume returns a new folder that a user may write and several containers of the pod share.
func (g *aiGateway) emptyVolume(user int) (string, error) {
	dir := g.dir("volumes", "socket")
	return dir, errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755), os.Chown(dir, user, user))
}

// followSecret updates the folder of a Secret's volume, as a kubelet does after the controller has changed the pod's annotations, until
// the function that it returns is called.
func (g *aiGateway) followSecret(ns, name, dir string) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		version := ""
		for ctx.Err() == nil {
			var o struct {
				Metadata struct {
					ResourceVersion string `yaml:"resourceVersion"`
				}
			}
			if err := g.kube.get(ctx, "/api/v1/namespaces/"+ns+"/secrets/"+name, &o); err == nil && o.Metadata.ResourceVersion != version {
				if _, err := g.kube.folder(ctx, ns, "secrets", name, filepath.Dir(filepath.Dir(dir))); err == nil {
					version = o.Metadata.ResourceVersion
				}
			}
			pause(ctx, 200*time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

// awaitProcessor waits until the processor is healthy, as its readiness probe asks.
func (g *aiGateway) awaitProcessor(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return g.processor.awaitPage(ctx, g.ip+":"+processorPort+"/health")
}
