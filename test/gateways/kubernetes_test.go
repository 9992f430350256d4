package gateways

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/test/kube/apiserver"
)

// kubePrograms is the folder of kube-apiserver and helm4. It is empty if only gateways that need no API server run.
var kubePrograms = os.Getenv("KEYWARD_GATEWAYS_KUBE")

// kubernetes is an API server without nodes: the tests take the place of controllers and the kubelet. Its methods are for one
// goroutine.
type kubernetes struct {
	dir       string
	processes []*lab.Process
	client    *http.Client
}

// startKubernetes starts an API server without objects, until the test ends. It skips the test if its programs are missing.
func startKubernetes(t *testing.T, name string) *kubernetes {
	t.Helper()
	if kubePrograms == "" {
		t.Skip("needs an API server: `make gateways` builds it and runs this test")
	}
	k := &kubernetes{dir: file("files", name)}
	if err := os.MkdirAll(filepath.Join(k.dir, "log"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := apiserver.WriteFiles(k.dir, bridgeIP); err != nil {
		t.Fatal(err)
	}
	var err error
	t.Cleanup(func() {
		for _, p := range k.processes {
			p.Kill()
		}
	})
	if k.processes, err = apiserver.Start(k.dir, filepath.Join(k.dir, "log"), filepath.Join(kubePrograms, "kube-apiserver"), bridgeIP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := timeout(t, 3*time.Minute)
	defer cancel()
	if err := lab.Await(ctx, "the API server", k.ready); err != nil {
		t.Fatal(err)
	}
	return k
}

// kubeconfig returns the path of the file by which clients reach the API server as an administrator.
func (k *kubernetes) kubeconfig() string { return filepath.Join(k.dir, "kubeconfig") }

func (k *kubernetes) ready(ctx context.Context) error {
	for _, p := range k.processes {
		if !p.Running() {
			return fmt.Errorf("%s has ended: %s", p.Name, p.Tail(2000))
		}
	}
	if k.client == nil {
		certificate, err := os.ReadFile(filepath.Join(k.dir, "certs", "apiserver.crt")) // signed by itself
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(certificate)
		k.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	}
	_, err := k.call(ctx, http.MethodGet, "/readyz", nil)
	return err
}

// call sends a request to the API server. A body is an object to apply, or to create if the method is POST.
func (k *kubernetes) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+bridgeIP+":"+apiserver.Port+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+apiserver.Token)
	req.Header.Set("Content-Type", "application/apply-patch+yaml")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%s %s: %w", method, path, errNotFound)
	}
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, res.Status, text)
	}
	return text, err
}

// objectPath returns the path of an object below the API server's address.
func objectPath(o object) (string, error) {
	version, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	meta, _ := o["metadata"].(object)
	name, _ := meta["name"].(string)
	if version == "" || kind == "" || name == "" {
		return "", fmt.Errorf("an object of version %q and kind %q has the name %q", version, kind, name)
	}
	path := "/apis/" + version
	if version == "v1" {
		path = "/api/v1"
	}
	if ns, ok := meta["namespace"].(string); ok {
		path += "/namespaces/" + ns
	}
	plural := strings.ToLower(kind)
	switch {
	case strings.HasSuffix(plural, "y") && !strings.HasSuffix(plural, "ay"):
		plural = strings.TrimSuffix(plural, "y") + "ies"
	case strings.HasSuffix(plural, "s"):
		plural += "es"
	default:
		plural += "s"
	}
	return path + "/" + plural + "/" + name, nil
}

// apply creates or changes objects by server-side apply.
func (k *kubernetes) apply(objects ...object) error {
	for _, o := range objects {
		path, err := objectPath(o)
		if err != nil {
			return err
		}
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if _, err := k.call(context.Background(), http.MethodPatch, path+"?fieldManager=tests&force=true", body); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes an object.
func (k *kubernetes) remove(o object) error {
	path, err := objectPath(o)
	if err != nil {
		return err
	}
	_, err = k.call(context.Background(), http.MethodDelete, path, nil)
	return err
}

// get reads what has a path into v, by its fields' yaml names.
func (k *kubernetes) get(ctx context.Context, path string, v any) error {
	text, err := k.call(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return yaml.Unmarshal(text, v)
}

// readObjects returns the objects in a text of YAML documents.
func readObjects(text []byte) (all []object, err error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var o object
		switch err := d.Decode(&o); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		case o != nil:
			all = append(all, o)
		}
	}
}

// applyFiles applies the objects in files that match a pattern, of the kinds that are listed, or of all kinds.
func (k *kubernetes) applyFiles(pattern string, kinds ...string) error {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no files match %s: %w", pattern, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all, err := readObjects(text)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		for _, o := range ofKind(all, kinds...) {
			if err := k.apply(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// ofKind returns the objects of these kinds, or all if there are none.
func ofKind(all []object, kinds ...string) (some []object) {
	for _, o := range all {
		match := len(kinds) == 0
		for _, kind := range kinds {
			match = match || o["kind"] == kind
		}
		if match {
			some = append(some, o)
		}
	}
	return some
}

// decode copies an object into a struct, by its fields' yaml names.
func decode(o object, v any) error {
	text, err := yaml.Marshal(o)
	if err != nil {
		return err
	}
	return yaml.Unmarshal(text, v)
}

// kubeNamespace returns a Namespace.
func kubeNamespace(name string) object {
	return object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name}}
}

// service returns a Service without a selector: its endpoints are applied, too.
func service(ns, name, port string, number int) object {
	return object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name, "namespace": ns},
		"spec": object{"ports": []any{object{"name": port, "port": number}}},
	}
}

// endpoints returns the EndpointSlice of a Service, as Kubernetes' controller makes it of ready pods.
func endpoints(ns, name, port string, number int, ips ...string) object {
	list := []any{}
	for _, ip := range ips {
		list = append(list, object{"addresses": []any{ip}, "conditions": object{"ready": true, "serving": true, "terminating": false}})
	}
	return object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  object{"name": name + "-1", "namespace": ns, "labels": object{"kubernetes.io/service-name": name}},
		"ports":     []any{object{"name": port, "port": number, "protocol": "TCP"}},
		"endpoints": list,
	}
}

// renderChart returns the objects of Keyward's chart in a namespace, by helm template.
func renderChart(ns string, args ...string) ([]object, error) {
	return renderRelease("keyward", "../../charts/keyward", ns, args...)
}

// renderRelease returns the objects of a release of a chart in a namespace, by helm template.
func renderRelease(name, chart, ns string, args ...string) ([]object, error) {
	cmd := exec.Command(filepath.Join(kubePrograms, "helm4"), append([]string{"template", name, chart, "-n", ns}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("helm template: %w: %s", err, stderr.String())
	}
	return readObjects(text)
}

// folder writes the files of a Secret or a ConfigMap to a folder below dir, and returns the folder.
func (k *kubernetes) folder(ctx context.Context, ns, kinds, name, dir string) (string, error) {
	var o struct{ Data map[string]string }
	if err := k.get(ctx, "/api/v1/namespaces/"+ns+"/"+kinds+"/"+name, &o); err != nil {
		return "", err
	}
	folder := filepath.Join(dir, kinds, name)
	for file, text := range o.Data {
		content := []byte(text)
		if kinds == "secrets" {
			var err error
			if content, err = base64.StdEncoding.DecodeString(text); err != nil {
				return "", err
			}
		}
		if err := writeFile(filepath.Join(folder, file), content); err != nil {
			return "", err
		}
	}
	return folder, nil
}

// folders returns folders with the content of a pod's volumes, by the volumes' names. The folder of an emptyDir is "". ConfigMaps that
// do not exist are left out.
func (k *kubernetes) folders(ctx context.Context, ns string, volumes []podVolume, dir string) (map[string]string, error) {
	all := map[string]string{}
	for _, v := range volumes {
		var err error
		switch {
		case v.Secret.SecretName != "":
			all[v.Name], err = k.folder(ctx, ns, "secrets", v.Secret.SecretName, dir)
		case v.ConfigMap.Name != "":
			var folder string
			if folder, err = k.folder(ctx, ns, "configmaps", v.ConfigMap.Name, dir); err == nil {
				all[v.Name] = folder
			}
			if errors.Is(err, errNotFound) {
				err = nil
			}
		default:
			all[v.Name] = ""
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// errNotFound is the error of a request for an object that does not exist.
var errNotFound = errors.New("not found")
