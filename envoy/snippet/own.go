package snippet

import (
	"errors"
)

// ownSources reads the rate_limits of the user's own Envoy.
func (g *generator) ownSources(yaml []byte) (map[string]source, error) {
	return nil, errors.New("not yet")
}
