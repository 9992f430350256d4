package admin

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// Entries returns the entries of d as rules match them.
func Entries(d *api.KeyDescriptor) []config.Entry {
	var out []config.Entry
	for _, e := range d.Entries {
		out = append(out, config.Entry(e))
	}
	return out
}

// hotOrder serves POST /hot and answers with the route that is now announced.
func hotOrder(give func(api.HotOrder) (api.HotRoute, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o api.HotOrder
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
		case errors.Is(err, api.ErrNoCounter):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusConflict)
		default:
			writeJSON(w, route)
		}
	}
}
