// Package postgres is a federation.Coordinator that keeps its accounts in PostgreSQL. It is tested with version 15.
//
// Each call is one transaction and one round trip. A function of the database processes each request while it holds the
// lock of the key's row, with the server's clock. A replica that is promoted may lack the last transactions; a region that
// reports more hits than are recorded has them charged again. Sweep deletes records a minute after their windows, so a
// clock that is set back by more than a minute can lend a window again.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keyward/keyward/federation"
)

const (
	maxConns    = 4
	dialTimeout = 2 * time.Second
	maxTries    = 3 // of a transaction that the server has rolled back
)

// Options configure a Coordinator.
type Options struct {
	URL        string            // postgres://user:password@host:port/database?sslmode=verify-full, with the parameters of libpq
	Federation string            // name of the federation; several can share a database
	Terms      federation.TermOf // of the federation's layouts
}

// Coordinator lends parts of pools that are recorded in PostgreSQL. It is safe for concurrent use.
type Coordinator struct {
	federation string
	terms      federation.TermOf
	pool       *pgxpool.Pool
	address    string
	repaired   atomic.Uint64
	now        func() int64 // nil outside of tests: the function reads the server's clock
}

var errMalformed = errors.New("open postgres: malformed URL or parameter; use postgres://user:password@host:port/database, " +
	"with special characters as %XX")

// Open returns a Coordinator, whose schema Setup creates. It returns an error if o.URL is unusable. It does not wait for
// the server: calls connect, and return errors until the server can be reached.
func Open(ctx context.Context, o Options) (*Coordinator, error) {
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, errMalformed // that of the parser may contain the password
	}
	config.MaxConns, config.MinConns = maxConns, 0
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, dialTimeout)
	config.ConnConfig.RuntimeParams["application_name"] = "keyward"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	address := fmt.Sprintf("%s:%d", config.ConnConfig.Host, config.ConnConfig.Port)
	return &Coordinator{federation: o.Federation, terms: o.Terms, pool: pool, address: address}, nil
}

// Close closes the connections. It waits for calls in progress.
func (c *Coordinator) Close() { c.pool.Close() }

// Repaired returns how many hits were charged because a region had them and the database had lost their record.
func (c *Coordinator) Repaired() uint64 { return c.repaired.Load() }

// Lease implements federation.Coordinator. Requests for one key are processed in their order.
func (c *Coordinator) Lease(ctx context.Context, region string, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
	requests := make([]*federation.PoolRequest, 0, len(rs))
	var terms []federation.LayoutTerm
	for i := range rs {
		r := &rs[i]
		if term, ok := c.terms(r.Epoch); ok && r.Valid() && !r.Extended() {
			requests, terms = append(requests, r), append(terms, term)
		}
	}
	if len(requests) == 0 {
		return nil, nil
	}
	for try := 1; ; try++ {
		gs, err := c.transact(ctx, region, requests, terms)
		if err == nil {
			return gs, nil
		}
		if try == maxTries || !rolledBack(err) {
			return nil, c.wrap("lease from", err)
		}
	}
}

// Reconcile implements federation.Coordinator.
func (c *Coordinator) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	_, err := c.Lease(ctx, region, rs)
	return err
}

// rolledBack reports whether the server has certainly undone a transaction which may succeed if it is repeated: one that
// was chosen to end a deadlock or that could not be serialized.
func rolledBack(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40P01" || e.Code == "40001")
}

// transact processes requests in one transaction. Each statement must see what others have committed when it gets a lock,
// so the isolation level is read committed, whatever the server's default is. Rows are locked in the order of their keys,
// so transactions do not wait for each other in a circle.
func (c *Coordinator) transact(
	ctx context.Context, region string, rs []*federation.PoolRequest, terms []federation.LayoutTerm,
) ([]federation.PoolGrant, error) {
	order := make([]int, len(rs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return slices.Compare(rs[i].Key[:], rs[j].Key[:]) })
	replies := make([]reply, len(rs))
	var batch pgx.Batch
	batch.Queue("begin isolation level read committed")
	for _, i := range order {
		batch.Queue(statement, c.arguments(region, rs[i], terms[i])...).Query(replies[i].read)
	}
	batch.Queue("commit")
	if err := c.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, err
	}
	var gs []federation.PoolGrant
	for i := range replies {
		if replies[i].granted {
			c.repaired.Add(uint64(replies[i].lost))
			gs = append(gs, replies[i].grant(rs[i]))
		}
	}
	return gs, nil
}

// wrap adds to an error what failed, and what to do if there is an obvious reason.
func (c *Coordinator) wrap(what string, err error) error {
	var e *pgconn.PgError
	hint := ""
	if errors.As(err, &e) {
		switch e.Code {
		case "42P01", "42883", "P0002": // a table, the function or the federation is missing
			hint = "; set up the schema of this federation"
		case "25006":
			hint = "; use the address of the primary"
		}
	}
	return fmt.Errorf("%s postgres %s: %w%s", what, c.address, err, hint)
}
