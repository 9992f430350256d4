package admin

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// resetKey serves POST /reset.
func resetKey(reset func(domain string, entries []config.Entry) (api.ResetResult, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o api.ResetOrder
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o)
		if err == nil {
			err = o.Validate()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		res, err := reset(o.Domain, Entries(&o.Descriptor))
		switch {
		case errors.Is(err, api.ErrNoCounter):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			writeLive(w, res)
		}
	}
}
