package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNotes requires that the notes list the allowed clients, and warn if all pods or no Envoys are allowed.
func TestNotes(t *testing.T) {
	const none, all = "WARNING: none of your Envoys can connect", "WARNING: every pod can connect to the members"
	chart := withNotes(t)
	for version, binary := range helms(t) {
		for set, c := range map[string]struct{ want, not []string }{
			"mode=deployment":                   {[]string{none, "envoyFrom:", "on 9090"}, []string{all}},
			"mode=daemonset":                    {[]string{none}, []string{all}},
			"mode=sidecar":                      {[]string{"pods with a sidecar of this release;"}, []string{none, all}},
			"preset=kgateway":                   {[]string{"pods of the namespace kgateway-system;"}, []string{none, all}},
			"networkPolicy.openToCluster=true":  {[]string{all, "networkPolicy.openToCluster is true", "Port 8081 has no authentication"}, []string{none}},
			"networkPolicy.enabled=false":       {[]string{all, "networkPolicy.enabled is false"}, []string{none, "on 9090"}},
			"tls.mode=generate":                 {[]string{"valid for 90 days. The CronJob keyward-certs replaces each 30 days before it expires"}, nil},
			"tls.mode=off":                      {[]string{"WARNING: tls.mode is off"}, nil},
			"tls.mode=secret":                   {[]string{"WARNING: tls.envoyNames is empty", "the Secret keyward-envoy-tls in Envoy's"}, nil},
			"tls.envoyNames={a}":                {nil, []string{"tls.envoyNames is empty"}},
			"networkPolicy.envoyFrom[0].a=b":    {[]string{"peers of networkPolicy.envoyFrom;"}, []string{none, all}},
			"networkPolicy.metricsFrom[0].a=b":  {nil, []string{"on 9090"}},
			"service.clientCertificates=true":   {nil, []string{all}},
			"networkPolicy.openAppPorts=false":  {[]string{none}, nil},
			"data.size=4Gi":                     {[]string{"Journals: data.volume is emptyDir", "the deletion of all pods at once"}, nil},
			"data.volume=pvc":                   {[]string{"Journals: data.volume is pvc", "keyward-data-keyward-0"}, nil},
			"data.volume=none":                  {[]string{"Journals: data.volume is none"}, nil},
			"gateway.namespaces={edge,backend}": {[]string{"pods of the namespace edge; pods of the namespace backend;"}, []string{none}},
		} {
			args := []string{"template", "keyward", chart, "--namespace", "shop"}
			for _, s := range append(append([]string(nil), given...), set) {
				args = append(args, "--set", s)
			}
			out, err := helm(t, binary, args...)
			if err != nil {
				t.Fatal(err)
			}
			notes, _ := at(object(t, documents(t, version, out), "ConfigMap", "notes"), "data", "notes").(string)
			for _, want := range c.want {
				if !strings.Contains(notes, want) {
					t.Errorf("%s, %s: the notes lack %q:\n%s", version, set, want, notes)
				}
			}
			for _, not := range c.not {
				if strings.Contains(notes, not) {
					t.Errorf("%s, %s: the notes have %q:\n%s", version, set, not, notes)
				}
			}
		}
	}
}

// withNotes copies the chart and renders its notes into an object, because Helm prints notes only with a cluster.
func withNotes(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keyward")
	if err := os.CopyFS(dir, os.DirFS("keyward")); err != nil {
		t.Fatal(err)
	}
	text := `{{- define "notes" }}` + string(read(t, "keyward/templates/NOTES.txt")) + `{{ end }}
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data: {notes: {{ include "notes" . | toJson }}}
`
	if err := os.WriteFile(filepath.Join(dir, "templates", "notes.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
