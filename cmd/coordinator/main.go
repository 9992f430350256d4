// Command coordinator lends parts of limits to the regions of a federation. It records in a store how many hits of each
// window each region has.
package main

import (
	"context"
	"os"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/postgres"
	"github.com/keyward/keyward/internal/app"
)

const about = `Keyward's coordinator lends parts of limits to the regions of a federation, so that all regions together stay within
each limit. It records lent hits in a store: in PostgreSQL, in Redis, or in its own memory. Several coordinators may
share one PostgreSQL or Redis. A coordinator with a store in memory must be the only one of its federation.

  coordinator --federation federation.yaml --store @store-url --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt

The sidecars of region NAME reach it with --authority home=keyward://HOST:7948. Their certificates need a URI name
that ends in /keyward/region/NAME.`

func main() {
	stores := map[string]app.OpenStore{"postgres": openPostgres, "postgresql": openPostgres}
	os.Exit(app.CoordinatorProgram{About: about, Stores: stores}.Main(os.Args[1:]))
}

// openPostgres opens a store in PostgreSQL. Package app does not import it, so sidecars do not link the driver.
func openPostgres(ctx context.Context, url, name string, terms federation.TermOf) (app.CoordinatorStore, error) {
	c, err := postgres.Open(ctx, postgres.Options{URL: url, Federation: name, Terms: terms})
	if err != nil {
		return app.CoordinatorStore{}, err
	}
	sweep := func(ctx context.Context) error {
		_, err := c.Sweep(ctx)
		return err
	}
	return app.CoordinatorStore{Coordinator: c, Setup: c.Setup, Init: c.Init, Sweep: sweep, Close: c.Close}, nil
}
