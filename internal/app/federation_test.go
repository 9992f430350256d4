package app

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layoutFile writes a layout and returns its path.
func layoutFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "federation.yaml")
	if err := os.WriteFile(file, []byte("name: shop\nepoch: 1\ncoordinator: redis\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// A member that is a holder of its own has its own name unless --region replaces it, and knows what its coordinators
// support.
func TestHolders(t *testing.T) {
	f := &federationFlags{Federation: layoutFile(t, "holders: 20\n"), Authorities: []string{"redis=redis://h", "shared=redis://h/?layout=envoyproxy"}}
	var x federations
	if err := x.open(f, "pod-a", nil); err != nil {
		t.Fatal(err)
	}
	if o := x.options(); x.region != "pod-a" || o.Holders != 20 || len(o.Weights) != 0 {
		t.Errorf("%q, %+v", x.region, o)
	}
	if o := x.rules(); o.Holders != 20 || !slices.Equal(o.Counts, []string{"redis"}) || !slices.Equal(o.Shared, []string{"shared"}) ||
		!slices.Equal(o.Reclaims, []string{"redis", "shared"}) {
		t.Errorf("%+v", o)
	}
	f.Region = "pod-b"
	x = federations{}
	if err := x.open(f, "pod-a", nil); err != nil || x.region != "pod-b" {
		t.Errorf("%q, %v", x.region, err)
	}
}

func TestHolderFaults(t *testing.T) {
	for text, want := range map[string]string{
		"regions: [{name: eu}]\n":             `--region: "" is not in the layout, which has eu`,
		"regions: [{name: eu}]\nholders: 2\n": "regions contradicts holders",
		"":                                    "regions is empty, and so is holders",
		"holders: 300\n":                      "300 holders, at most 256",
		"holders: 3\n":                        "with holders, want a URL that begins with redis://",
	} {
		f := &federationFlags{Federation: layoutFile(t, text)}
		if strings.HasPrefix(text, "holders") {
			f.Authorities = []string{"redis=keyward://h"}
		}
		if err := new(federations).open(f, "pod-a", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %q", text, err, want)
		}
	}
}
