package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/config"
)

// HotKeys is what /v1/hotkeys shows: the keys that are hot or leased at the one member that counts them, and what is
// done about hot keys anywhere. This, /v1/leases, /v1/timeline, the page made of them and the admin socket are the only places
// where keys are shown to those who do not know them.
type HotKeys struct {
	Member string         `json:"member"`
	Keys   []HotKeyStatus `json:"keys"`
	Routes []HotRoute     `json:"routes"` // of all members
}

// HotKeyStatus is one key with its owner.
type HotKeyStatus struct {
	Domain      string     `json:"domain"`       // empty while nobody has told the name
	Name        string     `json:"name"`         // the descriptor: k=v,k2=v2
	OwnerString string     `json:"owner_string"` // x-keyward-key of its questions
	Digest      string     `json:"digest"`
	Position    string     `json:"position"` // on the ring: the hash of its owner string
	Rate        float64    `json:"rate"`     // questions a second, wherever they were asked
	Hot         bool       `json:"hot"`
	Since       *time.Time `json:"since,omitempty"` // hot since then
	Limit       uint32     `json:"limit"`
	Window      string     `json:"window"`
	Used        uint64     `json:"used"` // hits that stand against the limit now, with those that are lent
	Lent        uint64     `json:"lent"` // of these, what members hold and may not have spent
	Splittable  bool       `json:"splittable"`
	Holders     []Holder   `json:"holders,omitempty"`
}

// Holder is a member that hits were lent to.
type Holder struct {
	Member string    `json:"member"`
	Lent   uint64    `json:"lent"`
	Demand float64   `json:"demand"` // hits a second that it is asked for
	Asked  time.Time `json:"asked"`  // last
}

// HotRoute is what is done about one hot key.
type HotRoute struct {
	Domain      string        `json:"domain"`
	Name        string        `json:"name"`
	OwnerString string        `json:"owner_string"`
	Mode        HotMode       `json:"mode"`
	Manual      bool          `json:"manual"` // said by hand
	By          string        `json:"by"`     // the member that says it
	Since       time.Time     `json:"since"`
	SubKeys     []RouteSubKey `json:"sub_keys,omitempty"`
}

// RouteSubKey is a part of a hot key and the member that counts it.
type RouteSubKey struct {
	Key    string `json:"key"`
	Member string `json:"member"`
}

// HeldLeases is what /v1/leases shows: parts of other members' limits that this member decides from.
type HeldLeases struct {
	Member string      `json:"member"`
	Keys   []HeldLease `json:"keys"`
}

// HeldLease is what a member holds of one key.
type HeldLease struct {
	Domain      string    `json:"domain"`
	Name        string    `json:"name"`
	OwnerString string    `json:"owner_string"`
	Digest      string    `json:"digest"`
	Owner       string    `json:"owner"` // the member that lent it
	Mechanism   string    `json:"mechanism"`
	Left        uint64    `json:"left"`   // hits not spent
	Have        uint64    `json:"have"`   // hits lent in this window
	Demand      float64   `json:"demand"` // hits a second asked for here
	Denied      bool      `json:"denied"` // the limit is used up: refused here until Expires
	Expires     time.Time `json:"expires"`
}

// HotMode is a hotkey.Mode as people write it.
type HotMode hotkey.Mode

func hotModes() [5]string { return [5]string{"clear", "cap", "pin", "split", "never"} } // by hotkey.Mode

func (m HotMode) String() string {
	if names := hotModes(); int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// MarshalText implements encoding.TextMarshaler.
func (m HotMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *HotMode) UnmarshalText(text []byte) error {
	for i, name := range hotModes() {
		if name == string(text) {
			*m = HotMode(i)
			return nil
		}
	}
	return fmt.Errorf("mode %q, want one of %v", text, hotModes())
}

// HotOrder is what POST /hot takes: what is to be done about one key from now on, whatever is measured. Either
// OwnerString or Descriptor names the key.
type HotOrder struct {
	Domain      string         `json:"domain"`
	OwnerString string         `json:"owner_string,omitempty"`
	Descriptor  *KeyDescriptor `json:"descriptor,omitempty"`
	Mode        *HotMode       `json:"mode"`
	Members     int            `json:"members,omitempty"` // of a split, at most 16; 0: as the key's rule says
}

// KeyDescriptor is a descriptor in JSON.
type KeyDescriptor struct {
	Entries []KeyValue `json:"entries"`
}

// KeyValue is one entry of a descriptor.
type KeyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ConfigEntries are the entries as rules match them.
func (d *KeyDescriptor) ConfigEntries() []config.Entry {
	var out []config.Entry
	for _, e := range d.Entries {
		out = append(out, config.Entry(e))
	}
	return out
}

// Validate says all that is wrong with o.
func (o *HotOrder) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(o.Domain == "", "domain is missing")
	fault(o.Mode == nil, "mode is missing, one of %v", hotModes())
	fault((o.OwnerString == "") == (o.Descriptor == nil), "name the key by owner_string or by descriptor")
	if d := o.Descriptor; d != nil {
		fault(len(d.Entries) == 0 || len(d.Entries) > maxEntries, "%d entries in the descriptor, want 1 to %d", len(d.Entries), maxEntries)
	}
	split := o.Mode != nil && hotkey.Mode(*o.Mode) == hotkey.Spread
	fault(o.Members != 0 && !split, "members are of a split only")
	fault(o.Members < 0 || o.Members == 1 || o.Members > hotkey.MaxSubKeys, "%d members, want 2 to %d", o.Members, hotkey.MaxSubKeys)
	return errors.Join(errs...)
}

// hotOrder answers POST /hot with the route that is announced from now on.
func hotOrder(give func(HotOrder) (HotRoute, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o HotOrder
		body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
		body.DisallowUnknownFields()
		err := body.Decode(&o)
		if err == nil {
			err = o.Validate()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		route, err := give(o)
		switch {
		case errors.Is(err, ErrNoCounter):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusConflict)
		default:
			writeJSON(w, route)
		}
	}
}
