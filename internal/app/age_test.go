package app

import (
	"testing"
	"time"
)

// The default age of connections is an hour: so long may a client with an expired certificate stay.
func TestConnectionsLiveForAnHour(t *testing.T) {
	for args, want := range map[string]time.Duration{"": time.Hour, "--connection-age=90s": 90 * time.Second} {
		line := []string{"--node", "a", "--insecure"}
		if args != "" {
			line = append(line, args)
		}
		f, err := Parse("sidecar", "", line, env())
		if err != nil {
			t.Fatal(err)
		}
		if f.ConnectionAge != want {
			t.Errorf("%s: connections live for %v, want %v", args, f.ConnectionAge, want)
		}
	}
}
