package hotkey

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

// busy returns a valid route with every field set.
func busy() Route {
	return Route{
		Domain: "api", Name: "api_key=bärbel", Owner: "bärbel", Mode: Spread, Manual: true, Author: "pod-1",
		Version: 1_700_000_000_123_456_789, Limit: 5000, Window: int64(time.Minute),
		Subs:    []SubKey{{"bärbel#0", "pod-2"}, {"bärbel#300", "pod-0"}},
		Entries: []RouteEntry{{"plan", "free"}, {"api_key", "bärbel"}},
	}
}

// golden is the encoding of busy, which members with other versions read. Older ones end before the entries.
const (
	golden  = oldPart + "02" + "04706c616e" + "0466726565" + "076170695f6b6579" + "0762c3a47262656c"
	oldPart = "010301" + "03617069" + "0f6170695f6b65793d62c3a47262656c" + "0762c3a47262656c" + "05706f642d31" +
		"959a97ece39fe7cb17" + "8827" + "80b09dc2df01" + "02" + "0005706f642d32" + "ac0205706f642d30"
)

func TestRouteGolden(t *testing.T) {
	want, err := hex.DecodeString(golden)
	if err != nil {
		t.Fatal(err)
	}
	r := busy()
	if got := AppendRoute([]byte("before"), &r); !bytes.Equal(got, append([]byte("before"), want...)) {
		t.Errorf("encoded as\n%x, want\n%x", got[6:], want)
	}
	for _, later := range []string{"", "more fields"} {
		if got, err := ParseRoute(append(bytes.Clone(want), later...)); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("parsed as %+v, %v", got, err)
		}
	}
	for i := range want {
		got, err := ParseRoute(want[:i])
		if older := i == len(oldPart)/2; older != (err == nil) {
			t.Errorf("the first %d bytes parse as %+v, %v", i, got, err)
		}
	}
}

func TestValid(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	for name, c := range map[string]struct {
		change func(r *Route)
		want   string // part of the error; empty: valid
	}{
		"as it is":            {func(*Route) {}, ""},
		"no name":             {func(r *Route) { r.Name = "" }, ""},
		"cap":                 {func(r *Route) { r.Mode, r.Subs = Cap, nil }, ""},
		"dedicated":           {func(r *Route) { r.Mode, r.Subs = Dedicated, r.Subs[:1] }, ""},
		"without a cap":       {func(r *Route) { r.Limit, r.Window = 0, 0 }, ""},
		"never":               {func(r *Route) { r.Mode, r.Subs, r.Limit, r.Window = Never, nil, 0, 0 }, ""},
		"cleared":             {func(r *Route) { r.Mode, r.Subs, r.Limit, r.Window = Auto, nil, 0, 0 }, ""},
		"never by itself":     {func(r *Route) { r.Mode, r.Subs, r.Manual = Never, nil, false }, "only allowed in a manual route"},
		"no domain":           {func(r *Route) { r.Domain = "" }, "domain: missing"},
		"no owner":            {func(r *Route) { r.Owner, r.Mode, r.Subs = "", Cap, nil }, "owner: missing"},
		"no author":           {func(r *Route) { r.Author = "" }, "author: "},
		"long author":         {func(r *Route) { r.Author = ring.ID(long) }, "author: "},
		"long domain":         {func(r *Route) { r.Domain = long }, "domain: has 257 bytes"},
		"long name":           {func(r *Route) { r.Name = long }, "name: has 257 bytes"},
		"long owner":          {func(r *Route) { r.Owner, r.Mode, r.Subs = long, Cap, nil }, "owner: has 257 bytes"},
		"line break in owner": {func(r *Route) { r.Owner, r.Mode, r.Subs = "a\r\nx: y", Cap, nil }, "control"},
		"C1 control in owner": {func(r *Route) { r.Owner, r.Mode, r.Subs = "a\u0085b", Cap, nil }, "control"},
		"not UTF-8":           {func(r *Route) { r.Owner, r.Mode, r.Subs = "a\xff", Cap, nil }, "not UTF-8"},
		"blank at the end":    {func(r *Route) { r.Owner, r.Mode, r.Subs = "a ", Cap, nil }, "blanks"},
		"escape in the name":  {func(r *Route) { r.Name = "\x1b[2J" }, "control"},
		"unknown mode":        {func(r *Route) { r.Mode, r.Subs = Quota+1, nil }, "unknown"},
		"quota": {func(r *Route) {
			r.Mode, r.Subs, r.Allow, r.Entries = Quota, nil, true, []RouteEntry{{"k", r.Owner}}
		}, ""},
		"quota of two entries": {func(r *Route) { r.Mode, r.Subs = Quota, nil }, "must have one entry"},
		"no version":           {func(r *Route) { r.Version = 0 }, "version 0"},
		"half a cap":           {func(r *Route) { r.Window = 0 }, "needs both a limit"},
		"cap without a limit":  {func(r *Route) { r.Mode, r.Subs, r.Limit, r.Window = Cap, nil, 0, 0 }, "needs both a limit"},
		"negative window":      {func(r *Route) { r.Window = -1 }, "window -1"},
		"cap with sub-keys":    {func(r *Route) { r.Mode = Cap }, "2 sub-keys"},
		"two dedicated":        {func(r *Route) { r.Mode = Dedicated }, "2 sub-keys"},
		"spread, no sub-keys":  {func(r *Route) { r.Subs = nil }, "0 sub-keys"},
		"17 sub-keys":          {func(r *Route) { r.Subs = make([]SubKey, 17) }, "17 sub-keys"},
		"of another key":       {func(r *Route) { r.Subs[0].Key = "anna#0" }, "sub-key"},
		"no number":            {func(r *Route) { r.Subs[0].Key = "bärbel#" }, "sub-key"},
		"a number's other way": {func(r *Route) { r.Subs[0].Key = "bärbel#00" }, "sub-key"},
		"one member twice":     {func(r *Route) { r.Subs[0].Member = r.Subs[1].Member }, "duplicate"},
		"one sub-key twice":    {func(r *Route) { r.Subs[0].Key = r.Subs[1].Key }, "duplicate"},
		"a sub-key, no member": {func(r *Route) { r.Subs[0].Member = "" }, "sub-key: "},
		"no entries":           {func(r *Route) { r.Entries = nil }, ""},
		"any value":            {func(r *Route) { r.Entries[0].Value = "" }, "entry: missing"},
		"no key":               {func(r *Route) { r.Entries[0].Key = "" }, "entry: missing"},
		"17 entries":           {func(r *Route) { r.Entries = make([]RouteEntry, 17) }, "17 entries"},
		"escape in an entry":   {func(r *Route) { r.Entries[1].Value = "\x1b[2J" }, "control"},
		"too long in all":      {makeHuge, "bytes, at most 1024"},
	} {
		t.Run(name, func(t *testing.T) {
			r := busy()
			c.change(&r)
			err := r.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			got, perr := ParseRoute(AppendRoute(nil, &r))
			if same := perr == nil && reflect.DeepEqual(got, r); same != (err == nil) {
				t.Errorf("parsed as %+v, %v", got, perr)
			}
		})
	}
}

// makeHuge gives r as many sub-keys as allowed, on members with long names.
func makeHuge(r *Route) {
	r.Subs = nil
	for i := range MaxSubKeys {
		r.Subs = append(r.Subs, SubKey{subKey(r.Owner, uint64(i)), ring.ID(fmt.Sprintf("%064d", i))})
	}
}

func TestParseRouteRefusesNumbersThatDoNotFit(t *testing.T) {
	r := busy()
	r.Limit = math.MaxUint32
	b := AppendRoute(nil, &r)
	if _, err := ParseRoute(b); err != nil {
		t.Fatal(err)
	}
	largest := []byte{0xff, 0xff, 0xff, 0xff, 0x0f}
	if got, err := ParseRoute(bytes.Replace(b, largest, []byte{0xff, 0xff, 0xff, 0xff, 0x1f}, 1)); err == nil {
		t.Errorf("limit 2^33-1 became %d", got.Limit)
	}
}

func FuzzParseRoute(f *testing.F) {
	r := busy()
	f.Add(AppendRoute(nil, &r))
	r.Mode, r.Manual, r.Subs = Cap, false, nil
	f.Add(AppendRoute(nil, &r))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRoute(b)
		if err != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		if again, err := ParseRoute(AppendRoute(nil, &r)); err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}
