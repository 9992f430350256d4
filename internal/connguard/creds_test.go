package connguard

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Credentials without TLS say so, are a server's, and are copied whole.
func TestCredentialsWithoutTLS(t *testing.T) {
	c := New(prometheus.NewRegistry()).Guard("test").Credentials(nil, true)
	for range 2 {
		if p := c.Info().SecurityProtocol; p != "insecure" {
			t.Errorf("protocol %q", p)
		}
		if _, _, err := c.ClientHandshake(t.Context(), "x", nil); err == nil {
			t.Error("they serve a client")
		}
		c = c.Clone()
	}
	var none *Guard
	if none.Account() != nil {
		t.Error("no surface has an account")
	}
}

// A handler may flush what it has written, by either way that net/http has.
func TestWatchedAnswersFlush(t *testing.T) {
	for name, flush := range map[string]func(http.ResponseWriter) error{
		"controller": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
		"flusher":    func(w http.ResponseWriter) error { w.(http.Flusher).Flush(); return nil },
	} {
		r := httptest.NewRecorder()
		a := &answerWriter{ResponseWriter: r, said: true}
		if _, err := a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := flush(a); err != nil || !r.Flushed {
			t.Errorf("%s: flushed %v, %v", name, r.Flushed, err)
		}
		if a.Unwrap() != http.ResponseWriter(r) {
			t.Errorf("%s: another writer inside", name)
		}
	}
}
