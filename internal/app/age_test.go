package app

import (
	"testing"
	"time"
)

// A certificate that has ended is good for as long as a connection lives: an hour, unless a flag says otherwise.
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
