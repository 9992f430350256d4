package postgres

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5"
)

//go:embed schema.sql
var schema string

// setupLock is the advisory lock under which the schema is changed.
const setupLock = 0x6b657977617264 // "keyward"

// Setup creates or updates the schema, and adds the federation. Of windows that began before a federation was added, only
// the rest is lent. Setup can be repeated, and run by several processes at once. The user needs the right to create tables;
// those of other calls only need to read and write them.
func (c *Coordinator) Setup(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(setupLock)); err != nil {
			return err
		}
		if _, err := tx.Conn().PgConn().Exec(ctx, schema).ReadAll(); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into keyward_since
			values ($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint) on conflict do nothing`, c.federation)
		return err
	})
	if err != nil {
		return c.wrap("set up", err)
	}
	return nil
}

// Init declares that the records of the federation are complete, although they are new: requests that follow may lend
// whole windows, including those that began before. It is for the deliberate start with an empty database. After the loss
// of records it would lend again what had been lent.
func (c *Coordinator) Init(ctx context.Context) error { return c.setSince(ctx, 0) }

// setSince sets when the records of the federation begin, in microseconds.
func (c *Coordinator) setSince(ctx context.Context, since int64) error {
	const set = "insert into keyward_since values ($1, $2) on conflict (fed) do update set since = $2"
	_, err := c.pool.Exec(ctx, set, c.federation, since)
	if err != nil {
		return c.wrap("initialize", err)
	}
	return nil
}

// sweepBatch is how many keys one statement of Sweep deletes.
const sweepBatch = 1000

// sweep deletes keys of which no window has been in use for a minute. It skips keys that are being used, so it never waits.
const sweep = `
with ended as (
  select fed, key from keyward_window where ends < clock_timestamp() - interval '1 minute' limit $1 for update skip locked
), lines as (
  delete from keyward_line l using ended e where l.fed = e.fed and l.key = e.key
)
delete from keyward_window k using ended e where k.fed = e.fed and k.key = e.key`

// Sweep deletes the records of windows that have ended, of all federations. It returns how many keys it deleted. The
// caller repeats it, for instance once a minute; several processes may do so at once.
func (c *Coordinator) Sweep(ctx context.Context) (keys int64, err error) {
	for {
		done, err := c.pool.Exec(ctx, sweep, sweepBatch)
		if err != nil {
			return keys, c.wrap("sweep", err)
		}
		keys += done.RowsAffected()
		if done.RowsAffected() < sweepBatch {
			return keys, nil
		}
	}
}

// Healthy implements federation.Coordinator. It returns an error if the server cannot be reached, does not accept writes,
// or has no schema for the federation.
func (c *Coordinator) Healthy(ctx context.Context) error {
	var standby, readOnly, known bool
	const state = "select pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'"
	const exists = "select exists (select from keyward_since where fed = $1)"
	err := c.pool.QueryRow(ctx, state).Scan(&standby, &readOnly)
	if err == nil {
		err = c.pool.QueryRow(ctx, exists, c.federation).Scan(&known)
	}
	switch {
	case err != nil:
	case standby:
		err = errors.New("this is a standby; use the address of the primary")
	case readOnly:
		err = errors.New("transactions are read-only; set default_transaction_read_only to off")
	case !known:
		err = errors.New("federation " + c.federation + " is unknown; set up its schema")
	default:
		return nil
	}
	return c.wrap("use", err)
}
