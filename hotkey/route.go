package hotkey

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

const (
	// maxRoute is the maximum size of an encoded Route in bytes, so that it fits into a gossip packet.
	maxRoute = 1024
	// maxText is the maximum size in bytes of a Route's Domain, Name and Owner each.
	maxText = 256

	// maxEntries is the maximum number of entries of a Route.
	maxEntries = 16

	routeFormat = 1
	flagManual  = 1
	flagAllow   = 2
)

// Capped reports whether Envoy refuses requests locally while the limit is certainly exceeded. Routes with mode
// Dedicated or Spread can be capped, too.
func (r *Route) Capped() bool { return r.Limit > 0 && r.Window > 0 }

// Validate reports every reason why r cannot be used. Routes from other members must pass it.
func (r *Route) Validate() error {
	faults := []error{
		checkNonEmpty("domain", r.Domain), checkNonEmpty("owner", r.Owner), checkText("name", r.Name),
		checkMember("author", r.Author), r.validSubs(), checkEntries(r.Entries),
	}
	if r.Owner != strings.Trim(r.Owner, " \t") {
		faults = append(faults, fmt.Errorf("owner %q: starts or ends with blanks, which no header value does", r.Owner))
	}
	if r.Mode > Quota {
		faults = append(faults, fmt.Errorf("mode %d: unknown", r.Mode))
	}
	if (r.Mode == Auto || r.Mode == Never) && !r.Manual {
		faults = append(faults, fmt.Errorf("mode %d: only allowed in a manual route", r.Mode))
	}
	if r.Mode == Quota && !r.ofHeader() {
		faults = append(faults, errors.New("quota: the descriptor must have one entry, whose value is the owner string"))
	}
	if r.Version <= 0 || r.Window < 0 {
		faults = append(faults, fmt.Errorf("version %d, window %d: out of range", r.Version, r.Window))
	}
	if (r.Limit > 0) != (r.Window > 0) || r.Mode == Cap && !r.Capped() {
		faults = append(faults, fmt.Errorf("limit %d in %d ns: a cap needs both a limit and a window", r.Limit, r.Window))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if n := r.size(); n > maxRoute {
		return fmt.Errorf("has %d bytes, at most %d are allowed", n, maxRoute)
	}
	return nil
}

// ofHeader reports whether the counter's descriptor is one entry with the header's value.
func (r *Route) ofHeader() bool { return len(r.Entries) == 1 && r.Entries[0].Value == r.Owner }

// validSubs requires as many sub-keys as the mode needs, each on another member and with this owner string.
func (r *Route) validSubs() error {
	least, most := 0, 0
	switch r.Mode {
	case Dedicated:
		least, most = 1, 1
	case Spread:
		least, most = 1, MaxSubKeys
	}
	if n := len(r.Subs); n < least || n > most {
		return fmt.Errorf("%d sub-keys: mode %d has %d to %d", n, r.Mode, least, most)
	}
	for i, s := range r.Subs {
		if err := checkMember("sub-key", s.Member); err != nil {
			return err
		}
		if _, ok := r.number(s); !ok {
			return fmt.Errorf("sub-key %q: is not %q, '#' and a number", s.Key, r.Owner)
		}
		for _, other := range r.Subs[:i] {
			if other.Member == s.Member || other.Key == s.Key {
				return fmt.Errorf("sub-key %q at %q: duplicate", s.Key, s.Member)
			}
		}
	}
	return nil
}

// checkEntries checks a descriptor that Envoy compares with those of requests. Empty values are not allowed: to Envoy
// they match every value.
func checkEntries(entries []RouteEntry) error {
	if len(entries) > maxEntries {
		return fmt.Errorf("%d entries: at most %d are allowed", len(entries), maxEntries)
	}
	for _, e := range entries {
		if err := errors.Join(checkNonEmpty("entry", e.Key), checkNonEmpty("entry", e.Value)); err != nil {
			return err
		}
	}
	return nil
}

// number returns the number in a sub-key.
func (r *Route) number(s SubKey) (n uint64, ok bool) {
	digits, found := strings.CutPrefix(s.Key, r.Owner+"#")
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, found && err == nil && s.Key == subKey(r.Owner, n)
}

// checkNonEmpty checks a text that must not be empty.
func checkNonEmpty(field, s string) error {
	if s == "" {
		return fmt.Errorf("%s: missing", field)
	}
	return checkText(field, s)
}

// checkText checks a text that is shown on terminals and that Envoy compares with headers.
func checkText(field, s string) error {
	switch {
	case len(s) > maxText:
		return fmt.Errorf("%s: has %d bytes, at most %d are allowed", field, len(s), maxText)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s %q: is not UTF-8", field, s)
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("%s %q: has control characters", field, s)
	}
	return nil
}

func checkMember(field string, id ring.ID) error {
	if id == "" || len(id) > ring.MaxID {
		return fmt.Errorf("%s: a member's name has 1 to %d bytes, not %d", field, ring.MaxID, len(id))
	}
	return nil
}

// AppendRoute appends the gossiped encoding of a valid r to dst: a format byte, the fields in order, varints for
// numbers, a length before each string, and only the number and the member of each sub-key. Later versions append
// fields: the entries are left out if there are none.
func AppendRoute(dst []byte, r *Route) []byte {
	flags := byte(0)
	if r.Manual {
		flags |= flagManual
	}
	if r.Allow {
		flags |= flagAllow
	}
	w := wire.Writer(dst).U8(routeFormat).U8(byte(r.Mode)).U8(flags)
	for _, s := range [...]string{r.Domain, r.Name, r.Owner, string(r.Author)} {
		w = w.Uvarint(uint64(len(s))).String(s)
	}
	w = w.Uvarint(uint64(r.Version)).Uvarint(uint64(r.Limit)).Uvarint(uint64(r.Window)).Uvarint(uint64(len(r.Subs)))
	for _, s := range r.Subs {
		n, _ := r.number(s)
		w = w.Uvarint(n).Uvarint(uint64(len(s.Member))).String(string(s.Member))
	}
	if len(r.Entries) == 0 {
		return w
	}
	w = w.Uvarint(uint64(len(r.Entries)))
	for _, e := range r.Entries {
		w = w.Uvarint(uint64(len(e.Key))).String(e.Key).Uvarint(uint64(len(e.Value))).String(e.Value)
	}
	return w
}

// size returns the length of r's encoding.
func (r *Route) size() int { return len(AppendRoute(nil, r)) }

// ParseRoute decodes what AppendRoute of this or a later version has encoded. The route is valid and does not refer to
// b.
func ParseRoute(b []byte) (Route, error) {
	in := wire.NewReader(b)
	if in.U8() != routeFormat || len(b) > maxRoute {
		return Route{}, errRoute
	}
	r := Route{Mode: Mode(in.U8())}
	flags := in.U8()
	r.Manual, r.Allow = flags&flagManual != 0, flags&flagAllow != 0
	r.Domain, r.Name, r.Owner = readText(&in, maxText), readText(&in, maxText), readText(&in, maxText)
	r.Author = ring.ID(readText(&in, ring.MaxID))
	r.Version, r.Limit = int64(readNumber(&in, math.MaxInt64)), uint32(readNumber(&in, math.MaxUint32))
	r.Window = int64(readNumber(&in, math.MaxInt64))
	for range readNumber(&in, MaxSubKeys) {
		key := subKey(r.Owner, in.Uvarint())
		r.Subs = append(r.Subs, SubKey{key, ring.ID(readText(&in, ring.MaxID))})
	}
	if in.Len() > 0 { // older members end here
		for range readNumber(&in, maxEntries) {
			r.Entries = append(r.Entries, RouteEntry{readText(&in, maxText), readText(&in, maxText)})
		}
	}
	if in.Err() != nil {
		return Route{}, errRoute
	}
	if err := r.Validate(); err != nil {
		return Route{}, err
	}
	return r, nil
}

var errRoute = errors.New("malformed route")

// readNumber reads a varint. A number above most is an error.
func readNumber(r *wire.Reader, most uint64) uint64 {
	v := r.Uvarint()
	if v > most {
		r.Fail()
		return 0
	}
	return v
}

// readText reads a string. A longer one than most is an error.
func readText(r *wire.Reader, most uint64) string { return r.String(int(readNumber(r, most))) }
