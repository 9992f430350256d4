package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// federationFile writes a layout and returns its path.
func federationFile(t *testing.T, text string) string {
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
	f := &federationFlags{Federation: federationFile(t, "holders: 20\n"), Authorities: []string{"redis=redis://h", "shared=redis://h/?layout=envoyproxy"}}
	var x federations
	if err := x.open(f, "pod-a", nil, slog.Default()); err != nil {
		t.Fatal(err)
	}
	if l := x.place().Schedule.Newest(); x.region != "pod-a" || l.Holders != 20 || len(l.Weights()) != 0 {
		t.Errorf("%q, %+v", x.region, l)
	}
	if o := x.rules(); o.Holders != 20 || !slices.Equal(o.Counts, []string{"redis"}) || !slices.Equal(o.Shared, []string{"shared"}) ||
		!slices.Equal(o.Reclaims, []string{"redis", "shared"}) {
		t.Errorf("%+v", o)
	}
	f.Region = "pod-b"
	x = federations{}
	if err := x.open(f, "pod-a", nil, slog.Default()); err != nil || x.region != "pod-b" {
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
		f := &federationFlags{Federation: federationFile(t, text)}
		if strings.HasPrefix(text, "holders") {
			f.Authorities = []string{"redis=keyward://h"}
		}
		if err := new(federations).open(f, "pod-a", nil, slog.Default()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %q", text, err, want)
		}
	}
}
