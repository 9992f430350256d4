package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// CounterStatus is how one key stands with its owner.
type CounterStatus struct {
	Count uint64 `json:"count"` // hits counted in the present window, with all that is lent; of a bucket, its level
	// Lent is how many of these members hold that may not have spent them. Only the owner of a leased key knows it.
	Lent      *uint64 `json:"lent,omitempty"`
	Limit     uint64  `json:"limit"`
	Remaining uint64  `json:"remaining"`
	Reset     float64 `json:"reset_seconds"`
	Owner     string  `json:"owner"`
	Authority string  `json:"authority"` // full when the owner answered
	Window    string  `json:"window"`
}

// ErrNoCounter says that no rule limits what was asked about.
var ErrNoCounter = errors.New("no rule limits this descriptor")

// AuthorityName is an authority in metrics and JSON.
func AuthorityName(a owner.Authority) string {
	if names := authorities(); int(a) < len(names) {
		return names[a]
	}
	return "unknown"
}

// counters answers GET /v1/counters?domain=D&key=k=v&key=..., entries in the order of the descriptor; or, for keys and
// values that have a = in them, &descriptor={"entries":[{"key":"k","value":"v"}]}. Asking charges nothing.
func counters(look func(domain string, entries []config.Entry) (CounterStatus, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		domain, entries, err := parseDescriptor(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c, err := look(domain, entries)
		switch {
		case errors.Is(err, ErrNoCounter):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			writeJSON(w, c)
		}
	}
}

// maxEntries is how many a descriptor may have, as in a rate-limit request.
const maxEntries = 64

func parseDescriptor(q url.Values) (domain string, entries []config.Entry, err error) {
	domain = q.Get("domain")
	for _, pair := range q["key"] {
		k, v, _ := strings.Cut(pair, "=")
		entries = append(entries, config.Entry{Key: k, Value: v})
	}
	if text := q.Get("descriptor"); text != "" {
		var d struct {
			Entries []struct{ Key, Value string } `json:"entries"`
		}
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			return "", nil, fmt.Errorf("descriptor: %w", err)
		}
		for _, e := range d.Entries {
			entries = append(entries, config.Entry(e))
		}
	}
	switch {
	case domain == "":
		return "", nil, errors.New("domain is missing")
	case len(entries) == 0:
		return "", nil, errors.New("key=NAME=VALUE is missing, once for each entry of the descriptor")
	case len(entries) > maxEntries:
		return "", nil, fmt.Errorf("%d entries, at most %d", len(entries), maxEntries)
	}
	return domain, entries, nil
}
