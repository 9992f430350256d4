package charts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// installs are the rows of the table in docs/security.md, with their values.
var installs = []struct {
	name string
	set  []string
}{
	{"`helm install`, or `mode: daemonset`", []string{"mode=deployment"}},
	{"`mode: sidecar`", []string{"mode=sidecar"}},
	{"`preset: envoy-gateway`", []string{"preset=envoy-gateway"}},
	{"`preset: envoy-ai-gateway`", []string{"preset=envoy-ai-gateway"}},
	{"`preset: istio`", []string{"preset=istio"}},
	{"`preset: contour`", []string{"preset=contour"}},
	{"`preset: kgateway`", []string{"preset=kgateway"}},
	{"`networkPolicy.openToCluster: true`", []string{"networkPolicy.openToCluster=true"}},
}

// TestSecurityPage requires that the table of allowed clients in docs/security.md equals the rendered chart.
func TestSecurityPage(t *testing.T) {
	const file, begin, end = "../docs/security.md", "<!-- chart -->\n", "<!-- /chart -->"
	var table strings.Builder
	table.WriteString("| installed | 7946, 7947 | 8081 | 8082 | 18000 | 8080 | 6070 | 9090 |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, i := range installs {
		for _, binary := range helms(t) {
			members, xds := whoReaches(t, binary, i.set)
			fmt.Fprintf(&table, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", i.name, members["TCP/7946"], members["TCP/8081"], members["TCP/8082"],
				cmp.Or(xds["TCP/18000"], "not served"), members["TCP/8080"], members["TCP/6070"], members["TCP/9090"])
			if members["TCP/7946"] != members["TCP/7947"] || members["TCP/7946"] != members["UDP/7946"] || xds["TCP/18000"] != "" && xds["TCP/9090"] != members["TCP/9090"] {
				t.Errorf("%s: ports that share a column differ: %v, %v", i.name, members, xds)
			}
			if i.set[0] == "mode=deployment" {
				if daemons, servers := whoReaches(t, binary, []string{"mode=daemonset"}); fmt.Sprint(daemons, servers) != fmt.Sprint(members, xds) {
					t.Errorf("mode daemonset has different clients than mode deployment: %v, %v", daemons, members)
				}
			}
			break // TestRenderings requires equal output of all versions
		}
	}
	text := string(read(t, file))
	head, rest, ok1 := strings.Cut(text, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s: no place for the table", file)
	}
	same(t, file, []byte(head+begin+table.String()+end+tail))
}

// whoReaches describes the clients of each port of a member and of an xDS server.
func whoReaches(t *testing.T, binary string, set []string) (members, xds map[string]string) {
	t.Helper()
	set = append(slices.Clone(given), set...)
	namespace := ""
	if slices.Contains(set, "preset=istio") {
		namespace = "istio-ingress"
	}
	out, err := renderIn(t, binary, namespace, set...)
	if err != nil {
		t.Fatal(err)
	}
	objects := documents(t, "", out)
	members, xds = map[string]string{}, map[string]string{}
	for _, p := range append(podsOf(t, objects), outsidePods(t, access{set: set}, objects)...) {
		into := members
		if p.runs("/bin/xds") {
			into = xds
		} else if p.labels["keyward.io/member"] == "" {
			continue
		}
		for _, port := range reserved {
			into[port] = inWords(reach(p, port, policies(objects)))
		}
	}
	return members, xds
}

// inWords returns the names of peers as used in the document.
func inWords(who []string) string {
	names := map[string]string{
		everyone: "every pod", membersOf("keyward"): "members", component("xds"): "xDS servers", component("test"): "`helm test`",
	}
	var words []string
	for _, w := range who {
		name := names[w]
		if name == "" {
			name = strings.TrimSuffix(strings.TrimPrefix(w, `{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"`), `"}}}`)
		}
		words = append(words, name)
	}
	slices.Sort(words)
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}
