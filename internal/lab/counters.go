package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/keyward/keyward/internal/api"
)

// CounterOf returns a key's counter at its owner, asked through the member with this metrics address. entries alternate
// between keys and values.
func CounterOf(ctx context.Context, metrics, domain string, entries ...string) (api.CounterStatus, error) {
	q := url.Values{"domain": {domain}}
	for i := 0; i+1 < len(entries); i += 2 {
		q.Add("key", entries[i]+"="+entries[i+1])
	}
	var c api.CounterStatus
	body, err := Get(ctx, "http://"+metrics+"/v1/counters?"+q.Encode())
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(body, &c); err != nil {
		return c, fmt.Errorf("read /v1/counters of %s: %w", metrics, err)
	}
	return c, nil
}
