package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keyward/keyward/internal/lab"
)

// postgresRegions are three regions whose coordinator is a process in front of a PostgreSQL.
type postgresRegions struct {
	*realRegions
	postgres    *lab.Postgres
	coordinator *lab.Process
	metrics     string // address of the coordinator's metrics
}

func newPostgresRegions(t *testing.T) *postgresRegions {
	t.Helper()
	p, err := lab.NewPostgres()
	if errors.Is(err, lab.ErrNoPostgres) && os.Getenv("KEYWARD_POSTGRES") != "required" {
		t.Skip(err)
	}
	if err == nil {
		t.Cleanup(p.Remove)
		err = p.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	x := &postgresRegions{realRegions: &realRegions{t: t, dir: tempDir(t), limit: usualLimit}, postgres: p}
	for _, addr := range []*string{&x.addr, &x.metrics} {
		if *addr, err = (lab.Ports{}).Addr(); err != nil {
			t.Fatal(err)
		}
	}
	x.startPostgres()
	x.startCoordinator("--init")
	x.addRegions("fail_closed", func(addr string) string { return "keyward://" + addr }, lab.Options{Insecure: true})
	return x
}

// startPostgres starts PostgreSQL and waits until it accepts connections. It starts it again if processes of the former
// one, which has been killed, still have its memory.
func (x *postgresRegions) startPostgres() {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "PostgreSQL", func(ctx context.Context) error {
		if x.postgres.Process == nil || !x.postgres.Running() {
			if err := x.postgres.Start(); err != nil {
				return err
			}
		}
		c, err := pgx.Connect(ctx, x.postgres.URL())
		if err == nil {
			err = c.Close(ctx)
		}
		return err
	}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *postgresRegions) startCoordinator(args ...string) {
	x.t.Helper()
	var err error
	x.coordinator, err = lab.StartProcess(x.dir, lab.Spec{
		Name: "coordinator", Path: filepath.Join(bin(x.t), "coordinator"), Args: append([]string{
			"--listen", x.addr, "--metrics", x.metrics, "--federation", x.layout(), "--store", x.postgres.URL(), "--insecure",
		}, args...),
	})
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(x.coordinator.Kill)
}

// TestRegionsWithPostgres kills the coordinator in the middle of a window, and then PostgreSQL. Both start again. Nothing is
// admitted above the limit, and the rest of it afterwards.
func TestRegionsWithPostgres(t *testing.T) {
	x := newPostgresRegions(t)
	window, s := x.during("postgres", moment{1500 * time.Millisecond, func(int64) {
		x.coordinator.Kill()
		x.startCoordinator()
	}}, moment{3 * time.Second, func(int64) {
		x.postgres.Kill()
		x.startPostgres()
	}})
	if over := x.goesOn(window, s); over > 0 {
		t.Errorf("%d above the limit", over)
	}
	if n := value(metrics(t, x.metrics), "keyward_coordinator_repaired_hits_total"); n > 0 {
		t.Errorf("PostgreSQL has lost %.0f hits", n)
	}
}
