package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
)

// CounterView is what /v1/counters says of one key: as its owner counts it, whichever member is asked.
type CounterView struct {
	Count     uint64 `json:"count"`
	Limit     uint64 `json:"limit"`
	Remaining uint64 `json:"remaining"`
	Owner     string `json:"owner"`
	Authority string `json:"authority"`
}

// CounterOf asks a member, by its metrics address, how a key stands. Entries are key, value, key, value...
func CounterOf(ctx context.Context, metrics, domain string, entries ...string) (CounterView, error) {
	q := url.Values{"domain": {domain}}
	for i := 0; i+1 < len(entries); i += 2 {
		q.Add("key", entries[i]+"="+entries[i+1])
	}
	var c CounterView
	body, err := Get(ctx, "http://"+metrics+"/v1/counters?"+q.Encode())
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(body, &c); err != nil {
		return c, fmt.Errorf("read /v1/counters of %s: %w", metrics, err)
	}
	return c, nil
}
