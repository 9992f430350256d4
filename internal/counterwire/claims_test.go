package counterwire

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
)

// encode returns c as Counter reads it: without its length.
func encode(c *protocol.CounterRecord) []byte {
	return Append(nil, c, Writers{}.Of([]protocol.CounterRecord{*c}))[4:]
}

// decode reads one counter, with the writers that it was encoded with.
func decode(b []byte, writers Writers) (*Decoder, error) {
	d := &Decoder{writers: writers}
	return d, d.Counter(wire.NewReader(b))
}

// randomClaims returns n claims of c's key with values from all ranges.
func randomClaims(rnd *rand.Rand, c *protocol.CounterRecord, n int) (claims []claim.Claim) {
	for range n {
		x := claim.Claim{
			ID: claim.Ident{rnd.Uint64(), rnd.Uint64()}, Key: c.Key, RingPos: c.RingPos, Caller: rnd.Uint64() >> rnd.IntN(65),
			At: int64(rnd.Uint64()) >> rnd.IntN(64), Amount: rnd.Uint32() >> rnd.IntN(33),
		}
		x.SetMade(rnd.Int64() >> rnd.IntN(63))
		x.SetTTL(time.Duration(rnd.Int64N(int64(maxTTL)-int64(time.Second)) >> rnd.IntN(63)))
		x.SetFlags(claim.Flags(rnd.IntN(16)))
		x.SetState(claim.Stage(rnd.IntN(4)))
		x.SetDomain(c.Domain)
		claims = append(claims, x)
	}
	return claims
}

func TestClaimsRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 5))
	for i := range 2000 {
		c := protocol.CounterRecord{Key: [2]uint64{rnd.Uint64(), rnd.Uint64()}, RingPos: rnd.Uint64(), Domain: rnd.Uint64()}
		if i%3 == 0 { // claims travel with their counter, or alone
			c.Rule = limit.Rule{Window: time.Minute, Limit: 10}
			c.State.Slots = []limit.Slot{{Writer: 5, At: 7, Charged: 9, Refunded: 2}, {Writer: 3, At: 8, Charged: 1}}
		}
		n := 1 + rnd.IntN(4)
		if i%500 == 0 {
			n = protocol.MaxClaims
		}
		c.Claims = randomClaims(rnd, &c, n)
		d, err := decode(encode(&c), Writers{3, 5})
		if err != nil {
			t.Fatal(err)
		}
		if got := &d.Counters[0]; !reflect.DeepEqual(got.Claims, c.Claims) || got.Key != c.Key || len(got.State.Slots) != len(c.State.Slots) {
			t.Fatalf("%+v, not %+v", got, c)
		}
	}
}

// TestTooManyClaims requires that a record has no more claims than others send, and that a number of claims which the
// record cannot contain reserves no memory.
func TestTooManyClaims(t *testing.T) {
	c := protocol.CounterRecord{Key: [2]uint64{1, 2}}
	c.Claims = randomClaims(rand.New(rand.NewPCG(1, 6)), &c, protocol.MaxClaims+1)
	if _, err := decode(encode(&c), nil); !errors.Is(err, ErrClaims) {
		t.Errorf("%d claims: %v", len(c.Claims), err)
	}
	c.Claims = c.Claims[:1]
	b := encode(&c)
	count := bytes.LastIndexByte(b[:len(b)-minClaimSize], 1)
	for _, n := range []uint64{2, protocol.MaxClaims, protocol.MaxClaims + 1, math.MaxInt64, math.MaxUint64} {
		hostile := append(wire.Writer(bytes.Clone(b[:count])).Uvarint(n), b[count+1:]...)
		if d, err := decode(hostile, nil); err == nil || len(d.claims) > 1 {
			t.Errorf("number %d: %d claims, error %v", n, len(d.claims), err)
		}
	}
	for i := count + 1; i < len(b); i++ {
		if _, err := decode(b[:i], nil); err == nil {
			t.Errorf("%d of %d bytes were read without an error", i, len(b))
		}
	}
}

// FuzzClaims requires that hostile claims are refused, or are the claims of the counter that they came with, with times
// whose sums do not overflow, and the same again after another journey.
func FuzzClaims(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 7))
	for n := range 4 {
		c := protocol.CounterRecord{Key: [2]uint64{3, 4}, RingPos: 5, Domain: 6}
		c.Claims = randomClaims(rnd, &c, n)
		f.Add(encode(&c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decode(b, Writers{3, 5})
		if err != nil {
			if len(d.Counters) > 0 {
				t.Fatal("a malformed counter is returned")
			}
			return
		}
		c := &d.Counters[0]
		if len(c.Claims) > protocol.MaxClaims || len(c.Claims)*minClaimSize > len(b) {
			t.Fatalf("%d claims in %d bytes", len(c.Claims), len(b))
		}
		for i := range c.Claims {
			x := &c.Claims[i]
			if x.Key != c.Key || x.RingPos != c.RingPos || uint64(x.Domain()) != c.Domain%1024 || x.Changed() || x.Tracked() {
				t.Fatalf("%+v in %+v", x, c)
			}
			if x.Made() <= 0 || x.TTL() < 0 || x.TTL() > maxTTL {
				t.Fatalf("made at %d, lapses after %v", x.Made(), x.TTL())
			}
		}
		again, err := decode(encode(c), Writers{3, 5}.With(nil))
		if len(c.State.Slots) > 0 { // the writers are those that its slots name
			again, err = decode(encode(c), Writers{}.Of(d.Counters))
		}
		if err != nil || !reflect.DeepEqual(again.Counters[0].Claims, c.Claims) {
			t.Fatalf("%+v, then %+v: %v", c, again.Counters, err)
		}
	})
}
