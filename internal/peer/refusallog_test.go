package peer

import (
	"io"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A client cannot fill the log: of many refusals within a second all are counted, and few are logged.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	m := newMember(t, "m0")
	m.alone()
	const refusals = 200
	began := m.clock.mono()
	for range refusals {
		conn := dialRaw(t, m, nil)
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) // the other side may have closed already
		_, _ = io.Copy(io.Discard, conn)
	}
	await(t, "all refusals to be counted", func() bool {
		return testutil.ToFloat64(m.m.refusals.WithLabelValues("garbage")) == refusals
	})
	gaps := int((m.clock.mono() - began) / int64(refusalLogGap))
	if n := strings.Count(m.log.String(), "peer connection rejected"); n == 0 || n > 1+gaps {
		t.Errorf("%d refusals within %d gaps are logged %d times", refusals, gaps, n)
	}
}
