package main

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/ops/doctor"
)

// TestProbe tries ports that are open and closed, TCP and UDP.
func TestProbe(t *testing.T) {
	tcp, err1 := net.Listen("tcp", "127.0.0.1:0")
	udp, err2 := net.ListenPacket("udp", "127.0.0.1:0")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	open := []doctor.Probe{{What: "gossip/tcp", Address: tcp.Addr().String()}, {What: "gossip/udp", Address: udp.LocalAddr().String()}}
	for _, p := range open {
		if err := probe(t.Context(), &p); err != nil {
			t.Errorf("%s is open: %v", p.What, err)
		}
	}
	tcp.Close()
	udp.Close()
	for _, p := range open {
		if err := probe(t.Context(), &p); err == nil || err.Error() != "connection refused" {
			t.Errorf("%s is closed: %v", p.What, err)
		}
	}
}

// TestDoctorCommand examines one member with few documents, and checks the findings and the exit code.
func TestDoctorCommand(t *testing.T) {
	alone := api.ClusterStatus{Self: "pod-0", Standalone: true, Version: "v1", Members: []api.MemberStatus{{ID: "pod-0", Role: "member", State: "active"}}}
	alone.Ring.Members, alone.Rules.InForce = []string{"pod-0"}, "00000000000000aa"
	pages := map[string]any{"/cluster": alone}
	out, err := run(t, "doctor", "--member", page(t, pages))
	if err != nil || !strings.Contains(out, "ok    one cluster   pod-0 runs standalone") || !strings.Contains(out, "-> upgrade it") || !strings.Contains(out, " 1 warning, 0 failed\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := run(t, "doctor", "--strict", "--member", page(t, pages)); err == nil {
		t.Error("a warning, and no error with --strict")
	}
	alone.Rules.LastError = "bad \x1b[2Jfile"
	out, err = run(t, "doctor", "--member", page(t, map[string]any{"/cluster": alone}))
	if err == nil || !strings.Contains(out, "FAIL  rules") || strings.Contains(out, "\x1b") {
		t.Errorf("%v\n%q", err, out)
	}
	if _, err := run(t, "doctor", "--member", "127.0.0.1:1"); err == nil {
		t.Error("no member answers, and no error")
	}
}

func TestWriteFindings(t *testing.T) {
	var b bytes.Buffer
	if err := writeFindings(&b, []doctor.Finding{
		{Check: "clocks", Severity: doctor.OK, Text: "fine", Advice: "nothing"},
		{Check: "rules", Severity: doctor.Fail, Text: "bad", Advice: "mend it"},
	}); err != nil {
		t.Fatal(err)
	}
	if want := "ok    clocks        fine\nFAIL  rules         bad\n                      -> mend it\n\n1 ok, 0 warnings, 1 failed\n"; b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
