package postgres

import (
	"encoding/binary"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// statement calls the function of the schema.
const statement = "select * from keyward_grant_2($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19)"

// arguments returns the arguments of the function for r, whose layout has that term.
func (c *Coordinator) arguments(region string, r *federation.PoolRequest, term federation.LayoutTerm) []any {
	var now *int64
	if c.now != nil {
		us := c.now() / 1000
		now = &us
	}
	var key [16]byte
	binary.BigEndian.PutUint64(key[:8], r.Key[0])
	binary.BigEndian.PutUint64(key[8:], r.Key[1])
	unsigned := func(n uint64) string { return strconv.FormatUint(n, 10) }
	return []any{
		c.federation, key, region, int64(r.Epoch), r.Rule.Window.Microseconds(), r.Rule.Algorithm == limit.SlidingWindow,
		int64(r.Pool), unsigned(r.Boot), unsigned(r.Seq), r.Window, int64(r.Have), int64(r.Left), int64(r.Tokens),
		r.Past.Window, int64(r.Past.Have), append([]byte{}, r.Note...), // nil would be NULL
		term.OpensMicro(), term.UntilMicro(), now,
	}
}

// reply is the row that the function returns.
type reply struct {
	granted                                         bool // there is a row: the request was not refused
	window, total, used, usable, microseconds, lost int64
	regions                                         []string
	have, left, ages                                []int64
	notes                                           [][]byte
}

// read reads the result of the function.
func (r *reply) read(rows pgx.Rows) error {
	for rows.Next() {
		r.granted = true
		if err := rows.Scan(&r.window, &r.total, &r.used, &r.usable, &r.microseconds, &r.lost,
			&r.regions, &r.have, &r.left, &r.ages, &r.notes); err != nil {
			return err
		}
	}
	return rows.Err()
}

// grant returns the grant for a request.
func (r *reply) grant(request *federation.PoolRequest) federation.PoolGrant {
	g := federation.PoolGrant{
		Key: request.Key, Seq: request.Seq, Window: r.window, Total: uint64(r.total), Used: uint64(r.used),
		Usable: uint64(r.usable), Left: time.Duration(r.microseconds) * time.Microsecond,
	}
	for i, region := range r.regions {
		g.Others = append(g.Others, federation.RegionLine{
			Region: region, Granted: uint64(r.have[i]), Left: uint64(r.left[i]),
			Age: time.Duration(r.ages[i]) * time.Microsecond, Note: r.notes[i],
		})
	}
	return g
}
