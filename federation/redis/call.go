package redis

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// call is a request as a call of a script.
type call struct {
	request *federation.PoolRequest
	key     string
	task    task
}

// script is a script by its source, and by the name under which Redis keeps it.
type script struct{ source, digest string }

//go:embed grant.lua
var grantSource string

//go:embed count.lua
var countSource string

var (
	grantScript = script{grantSource, digest(grantSource)}
	countScript = script{countSource, digest(countSource)}
)

// call returns the call for r, whose layout has that term. Times are in whole microseconds, of which each window has some.
func (c *Coordinator) call(region string, r *federation.PoolRequest, term federation.LayoutTerm) call {
	name, now, sliding := "", "", "0"
	if c.server.layout == envoyproxy {
		name = r.Name
	}
	if c.now != nil {
		now = strconv.FormatInt(c.now()/1000, 10)
	}
	if r.Rule.Algorithm == limit.SlidingWindow {
		sliding = "1"
	}
	prefix := tag(byte(r.Key[1]))
	unsigned := func(n uint64) string { return strconv.FormatUint(n, 10) }
	key := fmt.Sprintf("%s:fed:%016x%016x", prefix, r.Key[0], r.Key[1])
	run := &grantScript
	if r.Approximate {
		run = &countScript
	}
	return call{r, key, task{tag: byte(r.Key[1]), script: run, args: []any{
		"", 2, key, prefix + sinceName,
		region, fmt.Sprintf("%020d", r.Boot), fmt.Sprintf("%020d", r.Seq), string(r.Note), name,
		int64(r.Epoch), r.Rule.Window.Microseconds(), sliding, unsigned(r.Pool),
		r.Window, unsigned(r.Have), unsigned(r.Left), unsigned(r.Tokens),
		r.Past.Window, unsigned(r.Past.Have), now,
		r.Reclaim.Microseconds(), term.OpensMicro(), term.UntilMicro(),
	}}}
}

// sinceName follows the hash tag in the name of the time of the first write.
const sinceName = ":since"

// tag returns the hash tag of keys whose digest has that remainder modulo 256.
func tag(n byte) string { return fmt.Sprintf("{kw%02x}", n) }

// grant reads a reply of the script. The error is redigo.ErrNil if the request is refused. lost is the number of hits that
// were charged because their record was lost.
func (c *call) grant(reply any) (g federation.PoolGrant, lost uint64, err error) {
	fields, err := redigo.Values(reply, nil)
	if err != nil {
		return g, 0, err
	}
	const line = 5
	head := 6
	if c.request.Approximate {
		head = 7
	}
	if len(fields) < head || (len(fields)-head)%line != 0 {
		return g, 0, fmt.Errorf("script returned %d fields", len(fields))
	}
	number := func(i int) int64 {
		n, e := redigo.Int64(fields[i], nil)
		err = errors.Join(err, e)
		return n
	}
	text := func(i int) string {
		s, e := redigo.String(fields[i], nil)
		err = errors.Join(err, e)
		return s
	}
	g = federation.PoolGrant{
		Key: c.request.Key, Seq: c.request.Seq, Window: number(0), Total: uint64(number(1)), Used: uint64(number(2)),
		Usable: uint64(number(3)), Left: time.Duration(number(4)) * time.Microsecond,
	}
	lost = uint64(number(5))
	if c.request.Approximate {
		g.Past = uint64(number(6))
	}
	for i := head; i < len(fields); i += line {
		g.Others = append(g.Others, federation.RegionLine{
			Region: text(i), Granted: uint64(number(i + 1)), Left: uint64(number(i + 2)),
			Age: time.Duration(number(i+3)) * time.Microsecond, Note: []byte(text(i + 4)),
		})
	}
	slices.SortFunc(g.Others, func(a, b federation.RegionLine) int { return strings.Compare(a.Region, b.Region) })
	return g, lost, err
}

// digest returns the name under which Redis keeps a script: SHA-1 is part of its protocol.
func digest(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}
