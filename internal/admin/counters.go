package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// AuthorityName returns the name of an authority in metrics and JSON.
func AuthorityName(a owner.Authority) string {
	if names := authorities(); int(a) < len(names) {
		return names[a]
	}
	return "unknown"
}

// counters serves GET /v1/counters?domain=D&key=k=v&key=..., with the entries in the order of the descriptor. Keys that
// contain a = are given as &descriptor={"entries":[{"key":"k","value":"v"}]}. The request charges nothing.
func counters(read func(domain string, entries []config.Entry) (api.CounterStatus, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		domain, entries, err := parseDescriptor(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c, err := read(domain, entries)
		switch {
		case errors.Is(err, api.ErrNoCounter):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			writeJSON(w, c)
		}
	}
}

// parseDescriptor reads the domain and the descriptor that a query names.
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
	case len(entries) > api.MaxEntries:
		return "", nil, fmt.Errorf("%d entries, at most %d", len(entries), api.MaxEntries)
	}
	return domain, entries, nil
}
