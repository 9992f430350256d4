package counter

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	second = int64(time.Second)
	t0     = 1_700_000_040 * second // the beginning of a minute
)

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

func key(i int) Key {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(i))
	s := sha256.Sum256(b[:])
	return Key{binary.LittleEndian.Uint64(s[:]), binary.LittleEndian.Uint64(s[8:])}
}

func spread(i int) Key { return Key{Mix(uint64(i) + 1), Mix(^uint64(i))} }

// testTable is a table that inserts by key.
type testTable struct{ table }

func newTable(l *ledger, seed [2]uint64) *testTable {
	return &testTable{table{ledger: l, seed: seed}}
}

func (t *testTable) put(now int64, k Key, domain uint16) *entry {
	return t.insert(&Ref{Key: k, Hash: Hash(t.seed, k), Domain: uint64(domain), Now: now}, false)
}

// TestCountersHoldNoPointers requires that the garbage collector does not scan the pages of a table or a slab.
func TestCountersHoldNoPointers(t *testing.T) {
	for _, x := range []any{entry{}, record{}, Key{}, uint32(0)} {
		if typ := reflect.TypeOf(x); pointers(typ) {
			t.Errorf("%v holds pointers", typ)
		}
	}
}

func pointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if pointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Array:
		return pointers(t.Elem())
	}
	return t.Kind() > reflect.Complex128
}

func logRef(s *Shared, k Key, now int64) (Ref, int) {
	h := Hash(s.seed, k)
	r := limit.Rule{Window: 10 * time.Second, Limit: 1000, Algorithm: limit.SlidingLog}
	return Ref{Key: k, Hash: h, RingPos: k[0], Now: now, Rule: r, Full: r}, ShardOf(h)
}

// TestRecordsAreCapped requires that shards share the pages of records, apart from one that each has of its own, and
// that expired counters return them.
func TestRecordsAreCapped(t *testing.T) {
	s := New(Config{BootID: 3, MaxKeys: 1024, DomainQuota: 512})
	shards := new([Shards]Shard)
	for i := range shards {
		s.Init(&shards[i])
	}
	most, now, full := int64(3*1024/pageRecords), t0, 0
	var st, scratch limit.State
	for range 40 {
		now += second / 20
		for i := range 512 {
			r, j := logRef(s, key(i), now)
			x := &shards[j]
			e := x.Owned.Find(r.Hash, r.Key)
			if e == nil {
				if e = x.Insert(r, false, &scratch); e == nil {
					t.Fatalf("no room for key %d", i)
				}
			}
			x.Load(e, r.Rule, &st)
			r.Rule.Take(&st, now, 3, 1)
			if !x.Store(e, r.Rule, &st) {
				full++
			}
		}
		pages := 0
		for i := range shards {
			pages += len(shards[i].slab.pages)
		}
		if left := s.records.pages.Load(); left < 0 || int64(pages) > Shards+most-left {
			t.Fatalf("%d pages, and %d left of %d", pages, left, most)
		}
	}
	if full == 0 {
		t.Error("the records never ran out: the test shows nothing")
	}
	for i := range shards {
		for range 10 {
			shards[i].Sweep(now+30*second, 0, 256)
		}
		if !shards[i].Empty() {
			t.Errorf("shard %d is not empty", i)
		}
	}
	if left := s.records.pages.Load(); left != most {
		t.Errorf("%d pages left of %d after all counters expired", left, most)
	}
	if slots := s.records.domains[0].Load(); slots != 0 {
		t.Errorf("the domain is charged for %d slots after all counters expired", slots)
	}
}

// TestAudited requires that a counter keeps whether its rule has audit logs while its rule changes, and that SetAudited
// reports that it cannot.
func TestAudited(t *testing.T) {
	store := New(Config{BootID: 3, MaxKeys: 4096, DomainQuota: 4096})
	var s Shard
	var st limit.State
	store.Init(&s)
	ref := func(i int, w time.Duration) Ref {
		r := limit.Rule{Limit: 9, Window: w}
		return Ref{Key: key(i), Hash: s.Hash(key(i)), Now: t0, Rule: r, Full: r}
	}
	s.Insert(ref(1, time.Minute), false, &st)
	s.Insert(ref(2, 2*time.Hour), false, &st)
	e, other := s.Find(key(1)), s.Find(key(2))
	if s.Audited(e) || !s.SetAudited(e, true) || !s.Audited(e) || s.Audited(other) {
		t.Error("not recorded")
	}
	s.SetRule(e, limit.Rule{Limit: 9, Window: time.Hour})
	if !s.Audited(e) || s.Rule(e).Window != time.Hour || s.Rule(other).Window != 2*time.Hour {
		t.Errorf("lost with %+v", s.Rule(e))
	}
	for i := range maxShapes {
		s.Insert(ref(3+i, time.Duration(i+1)*time.Second), false, &st)
	}
	if e, other = s.Find(key(1)), s.Find(key(2)); s.SetAudited(other, true) || s.Audited(other) || s.Rule(other).Window != 2*time.Hour {
		t.Error("recorded without room")
	}
	if !s.SetAudited(e, true) || !s.SetAudited(other, false) {
		t.Error("no change needs no room")
	}
}
