package federation

import (
	"slices"
	"strings"
	"testing"
)

func TestParseLayout(t *testing.T) {
	ls, err := ParseLayouts("f.yaml", []byte(`
name: shop
epoch: 3
coordinator: home
regions:
  - name: eu
    weight: 2
  - name: us
  - name: spare
    weight: 0
`))
	if err != nil {
		t.Fatal(err)
	}
	l := ls[0]
	if l.Name != "shop" || l.Epoch != 3 || l.Coordinator != "home" || l.Index("us") != 1 || l.Index("ap") != -1 ||
		!slices.Equal(l.Weights(), []uint32{2, 1, 0}) || !slices.Equal(l.Names(), []string{"eu", "us", "spare"}) {
		t.Errorf("%+v", l)
	}
}

// one is a layout without a fault.
const one = "{name: a, epoch: 1, coordinator: home, regions: [{name: r}]}\n"

func TestLayoutFaults(t *testing.T) {
	for content, want := range map[string][]string{
		"":          {"f.yaml: the file is empty"},
		"nam: x":    {"f.yaml: ", "line 1", "nam"},
		"epoch: -1": {"f.yaml: ", "line 1"},
		"{}":        {"name is missing", "epoch is missing", "coordinator is missing", "regions is empty"},
		"regions: [{name: a}, {name: a, weight: 0}]": {"two regions are named \"a\""},
		"regions: [{name: a, weight: 0}]":            {"no region has a weight"},
		"regions: [{name: a, address: ':7948'}]":     {"the address \":7948\" of region \"a\": want host:port"},
		"regions: [{name: a, address: 'a:'}]":        {"the address \"a:\""},
		"regions: [{name: a, address: 'a:99999'}]":   {"the address \"a:99999\""},
		"regions: [{name: ''}]":                      {"the name of region 1 has 0 bytes"},
		"from: 2026-02-30T00:00:00Z":                 {"from \"2026-02-30T00:00:00Z\": want a time in UTC like"},
		"from: 2026-03-01T00:00:00+01:00":            {"want a time in UTC"},
		"from: 2026-03-01":                           {"want a time in UTC"},
		one + "---\n" + one:                          {"f.yaml: layout 2: epoch 1 follows epoch 1", "layout 2: from is missing"},
		one + "---\n" + strings.NewReplacer("a, epoch: 1", "b, epoch: 2", "regions: [{name: r}]", "holders: 2").Replace(one): {
			"layout 2: name is \"b\", and \"a\" before", "cannot become one with holders",
		},
		strings.Repeat(one+"---\n", 9): {"layouts, at most 8"},
	} {
		_, err := ParseLayouts("f.yaml", []byte(content))
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%q: %v, not %q", content, err, text)
			}
		}
	}
}
