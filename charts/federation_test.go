package charts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/ops/inject"
)

// TestLayout requires that members and coordinators accept the layout of the chart, and that all their pods are replaced
// when it changes.
func TestLayout(t *testing.T) {
	for version, binary := range helms(t) {
		for mode, set := range map[string][]string{
			"member":      append([]string{"tls.mode=off"}, regions...),
			"coordinator": append([]string{"mode=coordinator", "coordinator.store.memory=true", "tls.mode=off"}, layout...),
		} {
			var stamps []string
			for _, epoch := range []string{"2", "3"} {
				out, err := render(t, binary, append(slices.Clone(set), "federation.layout.epoch="+epoch, "federation.layout.from=2027-01-31T12:00:00Z",
					"federation.formerLayouts[0].name=shop", "federation.formerLayouts[0].epoch=1", "federation.formerLayouts[0].coordinator=home",
					"federation.formerLayouts[0].regions[0].name=eu")...)
				if err != nil {
					t.Fatal(err)
				}
				objects := documents(t, version, out)
				text, _ := at(object(t, objects, "ConfigMap", "keyward-federation"), "data", "federation.yaml").(string)
				ls, err := federation.ParseLayouts("federation.yaml", []byte(text))
				if err != nil || len(ls) != 2 {
					t.Fatalf("%s, %s: %v, %v in %s", version, mode, ls, err, text)
				}
				l := ls[1]
				if ls[0].Epoch != 1 || l.From == "" || l.Name != "shop" || l.Coordinator != "home" || !slices.Equal(l.Names(), []string{"eu", "us"}) || !slices.Equal(l.Weights(), []uint32{2, 1}) {
					t.Fatalf("%s, %s: %+v", version, mode, l)
				}
				kind := map[string]string{"member": "StatefulSet", "coordinator": "Deployment"}[mode]
				stamps = append(stamps, fmt.Sprint(at(object(t, objects, kind, "keyward"), "spec", "template")))
			}
			if stamps[0] != stamps[1] {
				t.Errorf("%s, %s: the pods are replaced when the layout changes:\n%s\n%s", version, mode, stamps[0], stamps[1])
			}
		}
	}
}

// TestRegionCertificates requires that the members' certificate proves their region, that it has the names by which other
// regions reach them, and that no other certificate proves a region.
func TestRegionCertificates(t *testing.T) {
	found := helms(t)
	version := slices.Sorted(maps.Keys(found))[0]
	set := append([]string{"tls.mode=cert-manager", "tls.issuerRef.name=shared", "federation.listen.enabled=true", "federation.hostNames={keyward.eu.example}"}, regions...)
	out, err := render(t, found[version], set...)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range documents(t, version, out) {
		if o["kind"] != "Certificate" {
			continue
		}
		uris, names := texts(at(o, "spec", "uris")), texts(at(o, "spec", "dnsNames"))
		member := at(o, "metadata", "name") == "keyward-tls"
		if proves := len(uris) == 1 && strings.HasSuffix(uris[0], "/keyward/region/eu"); proves != member || len(uris) > 1 {
			t.Errorf("%v has the URIs %v", at(o, "metadata", "name"), uris)
		}
		if member != slices.Contains(names, "keyward.eu.example") || member != slices.Contains(names, "keyward-regions.envoy-gateway-system.svc") {
			t.Errorf("%v has the names %v", at(o, "metadata", "name"), names)
		}
	}
}

// TestCoordinatorOnly requires that mode coordinator has no objects of members.
func TestCoordinatorOnly(t *testing.T) {
	want := []string{
		"ConfigMap/keyward-federation", "Deployment/keyward", "NetworkPolicy/keyward", "PodDisruptionBudget/keyward", "PodMonitor/keyward",
		"Service/keyward-metrics", "Service/keyward-regions", "ServiceAccount/keyward", "ServiceMonitor/keyward",
	}
	var got []string
	for _, o := range documents(t, "", read(t, "testdata/coordinator.yaml")) {
		if o["kind"] != nil {
			got = append(got, o["kind"].(string)+"/"+at(o, "metadata", "name").(string))
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("mode coordinator has %v, want %v", got, want)
	}
}

// TestInjectFederation requires that keyward inject adds the same for a federation as the library's template.
func TestInjectFederation(t *testing.T) {
	secret, err := inject.ParseAuthoritySecret("home=keyward-home-authority/redis-url")
	if err != nil {
		t.Fatal(err)
	}
	sameAsLibrary(t, "testdata/federation-sidecar.yaml", inject.Options{Federation: true, AuthoritySecrets: []inject.AuthoritySecret{secret}})
	for _, text := range []string{"", "home", "home=secret", "=secret/key", "home=/key"} {
		if a, err := inject.ParseAuthoritySecret(text); err == nil {
			t.Errorf("%q is %+v", text, a)
		}
	}
}
