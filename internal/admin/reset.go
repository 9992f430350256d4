package admin

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/keyward/keyward/internal/config"
)

// ResetOrder names the key whose count POST /reset gives back.
type ResetOrder struct {
	Domain     string        `json:"domain"`
	Descriptor KeyDescriptor `json:"descriptor"`
}

// ResetResult is what became of it.
type ResetResult struct {
	Before uint64 `json:"before"` // hits that stood in the present window
	After  uint64 `json:"after"`  // that stand now: what is lent stays, and others go on counting
	Owner  string `json:"owner"`
}

// Validate says what is missing.
func (o *ResetOrder) Validate() error {
	switch {
	case o.Domain == "":
		return errors.New("domain is missing")
	case len(o.Descriptor.Entries) == 0:
		return errors.New("the descriptor has no entries")
	case len(o.Descriptor.Entries) > maxEntries:
		return errors.New("the descriptor has too many entries")
	}
	return nil
}

// resetKey answers POST /reset.
func resetKey(reset func(domain string, entries []config.Entry) (ResetResult, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o ResetOrder
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o)
		if err == nil {
			err = o.Validate()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		res, err := reset(o.Domain, o.Descriptor.ConfigEntries())
		switch {
		case errors.Is(err, ErrNoCounter):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			writeLive(w, res)
		}
	}
}
