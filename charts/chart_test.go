package charts

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/inject"
)

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// same requires that a file of the chart has the given content.
func same(t *testing.T, file string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := os.ReadFile(file); !bytes.Equal(got, want) {
		t.Errorf("%s is not up to date: make chart", file)
	}
}

// TestCopies requires that the chart's alerts and boards equal those of dashboards/. Helm packages only files of the
// chart.
func TestCopies(t *testing.T) {
	same(t, "keyward/files/alerts.yml", read(t, "../dashboards/alerts.yml"))
	boards, _ := filepath.Glob("../dashboards/*.json")
	if len(boards) == 0 {
		t.Fatal("no boards")
	}
	for _, b := range boards {
		same(t, filepath.Join("keyward/files/dashboards", filepath.Base(b)), read(t, b))
	}
	copies, _ := filepath.Glob("keyward/files/dashboards/*.json")
	for _, c := range copies {
		if _, err := os.Stat(filepath.Join("../dashboards", filepath.Base(c))); err != nil {
			t.Errorf("%s: this board no longer exists", c)
		}
	}
}

// TestEnvoyFiles requires that the demo's configuration equals the output of keyward envoy-config for the example
// rules. The chart replaces the names that end in .invalid by names of the release.
func TestEnvoyFiles(t *testing.T) {
	rules, err := config.Load([]config.File{{Name: "example.yaml", Content: read(t, "keyward/files/example.yaml")}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	base := snippet.Options{Rules: rules, From: map[string]string{"api_key": "header:x-api-key"}, Upstream: "127.0.0.1:8000", EnvoyVersion: "1.40"}
	owners := base
	owners.XDS = "xds.keyward.invalid:18000"
	secrets := owners
	secrets.TLSCert, secrets.TLSKey, secrets.TLSCA = "/etc/keyward/tls/tls.crt", "/etc/keyward/tls/tls.key", "/etc/keyward/tls/ca.crt"
	secrets.SDS, secrets.XDSNames = "/etc/keyward/sds", []string{"xds.keyward.invalid"}
	client, ca, plain := secrets, secrets, base
	client.Part, ca.Part = "sds-client", "sds-ca"
	plain.Shape, plain.Sidecar = snippet.Plain, "rls.keyward.invalid:8081"
	frugal := plain
	frugal.Shape = snippet.RLQS
	if frugal.Rules, err = config.Load([]config.File{{Name: "example-quota.yaml", Content: read(t, "keyward/files/example-quota.yaml")}}, config.Options{}); err != nil {
		t.Fatal(err)
	}
	leased := plain
	leased.Shape = snippet.Module
	if leased.Rules, err = config.Load([]config.File{{Name: "example-module.yaml", Content: read(t, "keyward/files/example-module.yaml")}}, config.Options{}); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]snippet.Options{
		"module": leased, "rlqs": frugal, "owner-direct": secrets, "owner-direct-insecure": owners, "plain": plain, "keyward_client": client, "keyward_ca": ca,
	} {
		text, _, err := snippet.Generate(o)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "keyward/files/envoy/"+name+".yaml", text)
	}
}

// budgets are the values of an example: an Envoy in each pod that reserves tokens before a request, and commits those used.
const budgets = `# Budgets of tokens: helm install keyward charts/keyward -f charts/keyward/examples/budgets.yaml
# Each pod has the application, an Envoy in front of it and the sidecar. The Envoy reserves the estimate of a request to OpenAI's API, and
# commits what the answer reports. Its configuration is the output of
# keyward envoy-config --shape plain --reserve openai --failure-mode-deny --from tenant=header:x-tenant for these rules.
mode: sidecar
rules:
  llm.yaml: |
%senvoy:
  enabled: true
  config: |
%s`

// TestBudgetsExample requires that the example has the output of keyward envoy-config.
func TestBudgetsExample(t *testing.T) {
	llm := `domain: llm
descriptors:
- key: tenant
  rate_limit: {unit: hour, requests_per_unit: 1000000}
  metadata: {keyward: {reserve: 4096}}
`
	rules, err := config.Load([]config.File{{Name: "llm.yaml", Content: []byte(llm)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := snippet.Generate(snippet.Options{
		Rules: rules, From: map[string]string{"tenant": "header:x-tenant"}, Upstream: "127.0.0.1:8000", EnvoyVersion: "1.40",
		Shape: snippet.Plain, Sidecar: "127.0.0.1:8081", Reserve: "openai", FailureModeDeny: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "keyward/examples/budgets.yaml", fmt.Appendf(nil, budgets, indent(llm), indent(string(text))))
}

func indent(text string) string {
	return regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(text, "    $1")
}

// TestSchema requires that the schema has exactly the fields of values.yaml.
func TestSchema(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(read(t, "keyward/values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(read(t, "keyward/values.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	values["global"], values["keyward-lib"] = map[string]any{}, map[string]any{} // added by Helm
	alike(t, "", schema, values)
}

func alike(t *testing.T, path string, schema, values map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	if properties == nil {
		return // a free map
	}
	if schema["additionalProperties"] != false {
		t.Errorf("values%s: unknown fields are accepted", path)
	}
	for k, v := range values {
		s, ok := properties[k].(map[string]any)
		if !ok {
			t.Errorf("values%s.%s is not in the schema", path, k)
		} else if m, ok := v.(map[string]any); ok {
			alike(t, path+"."+k, s, m)
		}
	}
	for k := range properties {
		if _, ok := values[k]; !ok && path != "" && !optional[path] {
			t.Errorf("values%s.%s is only in the schema", path, k)
		}
	}
}

// optional are the groups whose fields may be missing in values.yaml.
var optional = map[string]bool{".resources": true, ".xds.resources": true, ".coordinator.resources": true, ".envoy.resources": true, ".tls.issuerRef": true}

// TestREADME requires that the table of values equals values.yaml.
func TestREADME(t *testing.T) {
	const file, begin, end = "keyward/README.md", "<!-- values -->\n", "<!-- /values -->"
	var doc yaml.Node
	if err := yaml.Unmarshal(read(t, "keyward/values.yaml"), &doc); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| value | default | |\n| --- | --- | --- |\n")
	rows(&table, "", doc.Content[0])
	text := string(read(t, file))
	head, rest, ok1 := strings.Cut(text, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s: no place for the values", file)
	}
	same(t, file, []byte(head+begin+table.String()+end+tail))
}

// rows writes a row for each value: its path, its default, and the comment before it that begins with --.
func rows(out *strings.Builder, path string, m *yaml.Node) {
	for i := 0; i < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		name := path + k.Value
		note := comment(k.HeadComment)
		if v.Kind == yaml.MappingNode && len(v.Content) > 0 && v.Style != yaml.FlowStyle && note == "" {
			rows(out, name+".", v)
			continue
		}
		if v.Kind == yaml.MappingNode && len(v.Content) > 0 && v.Style != yaml.FlowStyle {
			fmt.Fprintf(out, "| **`%s`** | | %s |\n", name, note)
			rows(out, name+".", v)
			continue
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		var value any
		_ = v.Decode(&value)
		_ = enc.Encode(value)
		fmt.Fprintf(out, "| `%s` | `%s` | %s |\n", name, strings.TrimSpace(b.String()), note)
	}
}

// comment returns the text of a comment that begins with # --.
func comment(text string) string {
	_, text, ok := strings.Cut(text, "# -- ")
	if !ok {
		return ""
	}
	return strings.ReplaceAll(text, "\n# ", " ")
}

// TestVersions requires that the default image, the library and the chart have the same version.
func TestVersions(t *testing.T) {
	var chart, lib struct {
		Version      string
		AppVersion   string `yaml:"appVersion"`
		Dependencies []struct{ Version string }
		Annotations  map[string]string
	}
	for file, into := range map[string]any{"keyward/Chart.yaml": &chart, "keyward/charts/keyward-lib/Chart.yaml": &lib} {
		if err := yaml.Unmarshal(read(t, file), into); err != nil {
			t.Fatal(err)
		}
	}
	v := chart.AppVersion
	if chart.Version != v || lib.Version != v || lib.AppVersion != v || chart.Dependencies[0].Version != v {
		t.Errorf("versions differ: %+v, %+v", chart, lib)
	}
	if image := "keyward/keyward:v" + v; !strings.Contains(chart.Annotations["artifacthub.io/images"], image+"\n") {
		t.Errorf("the annotation does not name %s", image)
	}
	if text := read(t, "keyward/charts/keyward-lib/templates/_sidecar.tpl"); bytes.Count(text, []byte(`"`+v+`"`)) != 2 { // both images
		t.Errorf("the library's image is not %s", v)
	}
}

// TestLint runs helm lint.
func TestLint(t *testing.T) {
	for version, binary := range helms(t) {
		if out, err := helm(t, binary, "lint", "--strict", "keyward"); err != nil {
			t.Errorf("%s: %s", version, out)
		}
	}
}

// TestRefused requires that invalid values are rejected with a message that names them.
func TestRefused(t *testing.T) {
	rules := func(text string) string {
		file := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return `file:rules.shop\.yaml=` + file
	}
	values := func(text string) string {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "values:" + file
	}
	for _, c := range []struct{ set, want string }{
		{"mod=sidecar", "mod"},
		{"mode=deamonset", "mode"},
		{"replicaCount=0", "replicaCount"},
		{"gossip.key=short", "gossip"},
		{"rulesConfigMap=mine", "test.domain"},
		{"resources.limits.memory=1Xi", "memory limit 1Xi"},
		{"xds.enabled=maybe", "xds"},
		{"image.digest=abc", "digest"},
		{"tls.mode=secret", "set tls.existingSecret, the Secret (tls.crt, tls.key, ca.crt) of the members\n* tls.mode secret: set tls.xdsSecret,"},
		{"tls.mode=secret,tls.existingSecret=a,tls.xdsSecret=a", "tls.xdsSecret and tls.existingSecret are both a"},
		{"tls.mode=secret,tls.existingSecret=a,tls.xdsSecret=b,mode=sidecar", "set tls.envoySecret"},
		{"tls.mode=secret,tls.existingSecret=a,tls.xdsSecret=b,tls.envoySecret=a,envoy.enabled=true", "tls.envoySecret and tls.existingSecret are both a"},
		{"autoscaling.enabled=true,autoscaling.minReplicas=5,autoscaling.maxReplicas=2", "autoscaling.minReplicas is 5 and autoscaling.maxReplicas 2"},
		{"autoscaling.enabled=true,autoscaling.minReplicas=0", "minReplicas"},
		{"networkPolicy.openToCluster=true,networkPolicy.envoyFrom[0].podSelector.matchLabels.a=b", "set one of them"},
		{"tls.generate.days=30", "tls.generate.renewBeforeDays is 30 and tls.generate.days 30"},
		{"tls.generate.schedule=daily", "schedule"},
		{"mode=sidecar,networkPolicy.appPorts={80,8082}", "8082 is a port of the sidecar"},
		{"quota.enabled=true,preset=contour", "Contour cannot add a rate limit quota filter"},
		{"quota.enabled=maybe", "quota"},
		{"module.enabled=true", "with mode deployment there is none, so set mode to sidecar"},
		{"mode=sidecar,module.enabled=true,module.image=m,quota.enabled=true", "the demo Envoy has one of them: set one"},
		{"mode=sidecar,module.enabled=true,module.image=m,module.envoyVersion=1.38.0", "module.envoyVersion is 1.38.0, and the demo Envoy's configuration is for 1.40"},
		{"module.envoyVersion=latest", "envoyVersion"},
		{values("module: {envoyVersion: 1.40}"), "envoyVersion"}, // a number, 1.4
		{"data.volume=nfs", "volume"},
		{"data.size=1G", "size"},
		{"data.size=127Mi", "data.size is 127Mi: want at least 128Mi"},
		{"data.volume=pvc,workload=Deployment", "data.volume pvc needs workload StatefulSet"},
		{"data.volume=pvc,mode=daemonset", "with mode daemonset, the members are not in a StatefulSet of this chart"},
		{"data.volume=pvc,mode=sidecar,envoy.enabled=true", "set data.volume to emptyDir, or hostPath"},
		{"data.volume=pvc,preset=envoy-gateway", "with preset envoy-gateway, the members are not in a StatefulSet"},
		{"data.volume=hostPath", "data.volume hostPath is for the modes daemonset and sidecar: with mode deployment,"},
		{"data.volume=hostPath,preset=envoy-gateway,mode=daemonset", "with preset envoy-gateway"},
		{"mode=coordinator", "set one of coordinator.store.secretName and coordinator.store.memory\n* federation.layout.name is missing\n* federation.layout.coordinator is missing\n* federation.layout.regions is missing\n* port 7948 needs certificates"},
		{"mode=coordinator,coordinator.store.memory=true,coordinator.store.secretName=a", "set one of coordinator.store"},
		{"mode=coordinator,coordinator.store.memory=true,coordinator.replicas=2", "coordinator.replicas is 2, and coordinator.store.memory needs 1"},
		{"mode=coordinator,preset=istio,envoy.enabled=true", "preset is istio: leave out preset\n* mode coordinator has no members"},
		{"mode=coordinator,tls.mode=secret", "tls.crt, tls.key, ca.crt) of the coordinator"},
		{strings.Join(regions, ",") + ",federation.region=ap", `federation.region "ap" is not in federation.layout.regions, which has eu, us`},
		{strings.Join(layout, ",") + ",federation.region=eu,federation.layout.regions[1].name=eu", "two regions have the same name"},
		{strings.Join(regions, ",") + ",federation.authorities[0].url=redis://a", "home needs one of url and secretName"},
		{strings.Join(regions, ",") + ",federation.authorities[1].url=redis://:hidden@a", "the url of near has a password"},
		{strings.Join(regions, ",") + ",preset=envoy-gateway", "Envoy Gateway runs the members"},
		{strings.Join(regions, ","), "port 7948 needs certificates of a CA that all regions share"},
		{"federation.listen.enabled=true", "federation.listen.enabled needs federation.region"},
		{"federation.layout.from=tomorrow", "from"},
		{"rules.shop=3", "rules"},
		{rules("domain: shop\ndescriptors: 3\n"), "rules.shop.yaml: descriptors: want a list, not 3"},
		{rules("domain: {}\ndescriptors: [3, {key: a, rate_limit: 5}, {key: b, rate_limit: {unit: 5}, descriptors: [{key: []}]}]\n"),
			"* rules.shop.yaml: domain: want a string\n* rules.shop.yaml: descriptors[0]: want a mapping with a key, not 3\n* rules.shop.yaml: descriptors[1].rate_limit: want a mapping" +
				" with unit and requests_per_unit, not 5\n* rules.shop.yaml: descriptors[2].rate_limit.unit: want a string, not 5\n* rules.shop.yaml: descriptors[2].descriptors[0].key: want a string\n"},
		{rules("- domain: shop\n"), "rules.shop.yaml: cannot read YAML"},
		{rules("domain: shop\ndescriptors:\n  - key: a\n    rate_limit: {unit: hour, requests_per_unit: many}\n"), "descriptors[0].rate_limit.requests_per_unit: want a number, not many"},
	} {
		for version, binary := range helms(t) {
			out, err := render(t, binary, c.set)
			if err == nil {
				t.Errorf("%s renders with %s: %d bytes", c.set, version, len(out))
			} else if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v\nwant %q", version, c.set, err, c.want)
			}
		}
	}
}

// TestEnvironment checks the default environment of members: they need rules to be ready, and HTTP ports listen only on
// loopback.
func TestEnvironment(t *testing.T) {
	for version, binary := range helms(t) {
		for set, want := range map[string]map[string]any{
			"mode=deployment": {"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true", "HOST": nil, "GRPC_HOST": ""},
			"mode=sidecar":    {"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true", "HOST": nil, "GRPC_HOST": nil},
			"mode=daemonset":  {"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true", "HOST": nil},
			"service.tls=true,service.clientCertificates=true,tls.envoyNames={edge}": {"GRPC_CLIENT_TLS_SAN": "edge", "GRPC_CLIENT_TLS_CACERT": "/etc/keyward/tls/ca.crt"},
			"service.http=true":        {"HOST": "", "GRPC_HOST": ""},
			"preset=envoy-ai-gateway":  {"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": nil, "FORCE_START_WITHOUT_INITIAL_CONFIG": "true"},
			"preset=envoy-gateway":     {"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": nil},
			"data.size=512Mi":          {"KEYWARD_DATA_SIZE": "256MiB", "KEYWARD_DATA_WINDOW": "1h", "KEYWARD_DATA": nil}, // set where the volume is mounted
			"data.volume=none":         {"KEYWARD_DATA_SIZE": nil, "KEYWARD_DATA_WINDOW": nil},
			"environment.HOST=0.0.0.0": {"HOST": "0.0.0.0"},
		} {
			out, err := render(t, binary, append(slices.Clone(given), set)...)
			if err != nil {
				t.Fatal(err)
			}
			data := object(t, documents(t, version, out), "ConfigMap", "keyward-member")["data"]
			for name, v := range want {
				if got := at(data, name); got != v {
					t.Errorf("%s, %s: %s is %v, want %v", version, set, name, got, v)
				}
			}
		}
	}
}

// TestJournals requires that every member has a writable volume for its journal, of the kind that the values name, and that no
// other pod has it.
func TestJournals(t *testing.T) {
	found := helms(t)
	version := slices.Sorted(maps.Keys(found))[0] // TestRenderings requires equal output of all versions
	for _, c := range []struct{ set, kind string }{
		{"mode=deployment", "emptyDir"},
		{"workload=Deployment", "emptyDir"},
		{"mode=daemonset", "emptyDir"},
		{"mode=sidecar,envoy.enabled=true", "emptyDir"},
		{"preset=envoy-gateway", "emptyDir"},
		{"preset=envoy-ai-gateway", "emptyDir"},
		{"data.volume=pvc", "claim"},
		{"data.volume=hostPath,mode=daemonset", "hostPath"},
		{"data.volume=hostPath,mode=sidecar,envoy.enabled=true", "hostPath"},
		{"data.volume=none", ""},
		{"data.volume=none,mode=sidecar,envoy.enabled=true", ""},
		{"data.volume=none,preset=envoy-gateway", ""},
	} {
		out, err := render(t, found[version], append(slices.Clone(given), strings.Split(c.set, ",")...)...)
		if err != nil {
			t.Fatal(err)
		}
		members := 0
		for _, x := range memberTemplates(t, documents(t, version, out)) {
			kind, mounts := x.journal()
			for name, dir := range mounts {
				if member := name == "keyward" || name == "envoy-ratelimit"; member {
					members++
					if dir != (c.kind != "") || kind != c.kind {
						t.Errorf("%s: %s has a journal: %v, on %q, want %q", c.set, name, dir, kind, c.kind)
					}
				} else if dir {
					t.Errorf("%s: %s can read the journal", c.set, name)
				}
			}
		}
		if members != 1 {
			t.Errorf("%s: %d members are rendered, want 1", c.set, members)
		}
	}
}

// memberTemplate is the template of a pod, and the claims that its StatefulSet creates.
type memberTemplate struct {
	spec   any
	claims []any
}

// memberTemplates returns the templates of all pods, and the one that Envoy Gateway makes of the chart's values.
func memberTemplates(t *testing.T, objects []map[string]any) (all []memberTemplate) {
	t.Helper()
	for _, o := range objects {
		if spec := at(o, "spec", "template", "spec"); spec != nil {
			claims, _ := at(o, "spec", "volumeClaimTemplates").([]any)
			all = append(all, memberTemplate{spec, claims})
		}
		if text, ok := at(o, "data", "values.yaml").(string); ok {
			var values map[string]any
			if err := yaml.Unmarshal([]byte(text), &values); err != nil {
				t.Fatal(err)
			}
			d := at(values, "config", "envoyGateway", "provider", "kubernetes", "rateLimitDeployment")
			c := maps.Clone(at(d, "container").(map[string]any))
			c["name"] = "envoy-ratelimit"
			all = append(all, memberTemplate{map[string]any{"containers": []any{c}, "volumes": at(d, "pod", "volumes")}, nil})
		}
	}
	return all
}

// journal returns the kind of the volume for journals, and by the name of a container whether it writes there.
func (x memberTemplate) journal() (kind string, writes map[string]bool) {
	volumes, _ := at(x.spec, "volumes").([]any)
	for _, v := range volumes {
		if at(v, "name") == "keyward-data" {
			for k := range v.(map[string]any) {
				if k != "name" {
					kind = k
				}
			}
		}
	}
	for _, c := range x.claims {
		if at(c, "metadata", "name") == "keyward-data" {
			kind += "claim"
		}
	}
	writes = map[string]bool{}
	for _, list := range []string{"initContainers", "containers"} {
		all, _ := at(x.spec, list).([]any)
		for _, c := range all {
			name, mounted, set := at(c, "name").(string), false, false
			mounts, _ := at(c, "volumeMounts").([]any)
			for _, m := range mounts {
				mounted = mounted || at(m, "name") == "keyward-data" && at(m, "mountPath") == "/var/lib/keyward" && at(m, "readOnly") == nil
			}
			env, _ := at(c, "env").([]any)
			for _, e := range env {
				set = set || at(e, "name") == "KEYWARD_DATA" && at(e, "value") == "/var/lib/keyward"
			}
			writes[name] = mounted && set
		}
	}
	return kind, writes
}

// object returns the object with a kind and name.
func object(t *testing.T, objects []map[string]any, kind, name string) map[string]any {
	t.Helper()
	for _, o := range objects {
		if o["kind"] == kind && at(o, "metadata", "name") == name {
			return o
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

// TestGenerated requires that members accept the certificates and the key that Helm creates.
func TestGenerated(t *testing.T) {
	for version, binary := range helms(t) {
		out, err := render(t, binary, "tls.mode=generate")
		if err != nil {
			t.Fatal(err)
		}
		secrets := map[string]map[string][]byte{}
		for _, d := range documents(t, version, out) {
			var s struct {
				Kind     string
				Metadata struct{ Name string }
				Data     map[string]string
			}
			b, _ := yaml.Marshal(d)
			if err := yaml.Unmarshal(b, &s); err != nil {
				t.Fatal(err)
			}
			if s.Kind == "Secret" {
				secrets[s.Metadata.Name] = decoded(t, s.Data)
			}
		}
		if key := decoded(t, map[string]string{"k": string(secrets["keyward-gossip"]["gossip.key"])})["k"]; len(key) != 32 {
			t.Errorf("%s: a gossip key of %d bytes", version, len(key))
		}
		for name, dns := range map[string]string{"keyward-tls": "keyward.envoy-gateway-system.svc", "keyward-xds-tls": "keyward-xds.envoy-gateway-system.svc", "keyward-envoy-tls": "keyward-envoy.envoy-gateway-system.svc"} {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(secrets[name]["ca.crt"])
			block, _ := pem.Decode(secrets[name]["tls.crt"])
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Verify(x509.VerifyOptions{Roots: pool, DNSName: dns, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Errorf("%s, %s: %v", version, name, err)
			}
		}
	}
}

func decoded(t *testing.T, data map[string]string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for k, v := range data {
		var b []byte
		if err := json.Unmarshal([]byte(`"`+v+`"`), &b); err != nil {
			t.Fatalf("%s: %v", k, err)
		}
		out[k] = b
	}
	return out
}

// TestInject requires that keyward inject adds the same as the library's template.
func TestInject(t *testing.T) { sameAsLibrary(t, "testdata/sidecar-envoy.yaml", inject.Options{}) }

// sameAsLibrary compares the sidecar that keyward inject adds with that of a rendering.
func sameAsLibrary(t *testing.T, file string, o inject.Options) {
	t.Helper()
	o.Image, o.TLS, o.EnvoyAdmin, o.CPU, o.MemoryRequest, o.Memory = "ghcr.io/keyward/keyward:v0.1.0", true, "127.0.0.1:9901", "50m", "128Mi", "512Mi"
	for _, d := range documents(t, "", read(t, file)) {
		if d["kind"] != "StatefulSet" {
			continue
		}
		spec := at(d, "spec", "template", "spec").(map[string]any)
		want, volumes := spec["initContainers"].([]any)[0], spec["volumes"].([]any)
		out, _, err := inject.Inject([]byte("{kind: Pod, metadata: {name: a}, spec: {containers: []}}"), o)
		if err != nil {
			t.Fatal(err)
		}
		pod := documents(t, "", out)[0]
		got := at(pod, "spec", "initContainers").([]any)[0]
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the container is\n%v\nthe library's\n%v", got, want)
		}
		if got := at(pod, "spec", "volumes").([]any); !reflect.DeepEqual(got, volumes[:len(got)]) {
			t.Errorf("the volumes are %v, the library's %v", got, volumes)
		}
		if a, b := at(pod, "metadata", "labels", "keyward.io/member"), at(d, "spec", "template", "metadata", "labels", "keyward.io/member"); a != b {
			t.Errorf("the label is %v, the library's %v", a, b)
		}
		return
	}
	t.Fatal("no StatefulSet")
}
