package app

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/federation"
)

// The members of a region follow their file: the coordinators of new layouts are added, and a faulty file changes nothing.
func TestLayoutsAreFollowed(t *testing.T) {
	const (
		one = "name: shop\nepoch: 1\ncoordinator: eu\nregions: [{name: eu, address: 'eu:1'}, {name: us, address: 'us:1'}]\n"
		two = "---\nname: shop\nepoch: 2\nfrom: 2199-01-01T00:00:00Z\ncoordinator: us\nregions: [{name: eu}, {name: us, weight: 3, address: 'us:2'}]\n"
	)
	file := federationFile(t, "")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(one)
	f := &flags{securityFlags: securityFlags{Insecure: true}}
	f.Federation, f.Region, f.FederationMargin = file, "us", time.Minute
	x := &federations{}
	reg := prometheus.NewRegistry()
	if err := x.open(&f.federationFlags, "pod-a", &security{flags: f, log: slog.New(slog.DiscardHandler)}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	x.layouts.export(reg, x.region)
	if names := x.names(); len(names) != 1 || names[0] != "eu" || x.lends() {
		t.Fatalf("coordinators %v, lends %v", names, x.lends())
	}
	now := time.Now().UnixNano()
	for _, step := range []struct {
		content string
		changed bool
		newest  uint32
		refused bool
	}{
		{one, false, 1, false}, {one + "---\n", false, 1, true}, {two[4:], false, 1, true}, {one + two, true, 2, false}, {one + two, false, 2, false},
		{one, false, 2, true}, {one + two, true, 2, false},
	} {
		write(step.content)
		if x.layouts.refresh(now) != step.changed || x.layouts.now().Newest().Epoch != step.newest || x.layouts.refused.Load() != step.refused {
			t.Fatalf("%q: epoch %d, refused %v", step.content, x.layouts.now().Newest().Epoch, x.layouts.refused.Load())
		}
	}
	if err := x.openRegions(); err != nil {
		t.Fatal(err)
	}
	if names := x.names(); len(names) != 2 || names[1] != "us" || !x.lends() || x.layouts.epoch() != 1 {
		t.Errorf("coordinators %v, lends %v, epoch %d", names, x.lends(), x.layouts.epoch())
	}
	if o := x.rules(); o.Coordinator != "us" || len(o.Authorities) != 2 {
		t.Errorf("%+v", o)
	}
	if p := x.place(); !p.Schedule.At(time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()).Lends || p.Schedule.At(now).Lends {
		t.Error("the wrong layout lends")
	}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
	for _, c := range x.regions {
		c.current.Load().Close()
	}
	var _ federation.Coordinator = x.served
}
