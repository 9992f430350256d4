package app

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// TestDetectionCheck requires one warning for each boot of a member with another --detection. A member that announces
// none uses the default.
func TestDetectionCheck(t *testing.T) {
	var logs bytes.Buffer
	c := detectionCheck{own: membership.DefaultDetection, log: slog.New(slog.NewTextHandler(&logs, nil))}
	v := &membership.View{Self: "a", BootID: 1, Members: []membership.Member{
		{ID: "a", BootID: 1}, {ID: "b", BootID: 3}, {ID: "c", BootID: 5, Detection: membership.DefaultDetection},
		{ID: "d", BootID: 7, Detection: membership.Detection(10 * time.Second)},
		{ID: "x", BootID: 9, Role: membership.RoleObserver, Detection: membership.MaxDetection},
	}}
	c.see(v)
	c.see(v)
	v.Members[3].BootID = 11
	c.see(v)
	if got := logs.String(); strings.Count(got, "\n") != 2 || strings.Count(got, "peer=d duration=10s") != 2 {
		t.Errorf("logs:\n%s", got)
	}
}
