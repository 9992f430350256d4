package connguard

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Credentials without TLS report it, are only for servers, and can be cloned.
func TestCredentialsWithoutTLS(t *testing.T) {
	c := New(prometheus.NewRegistry()).Guard("test").Credentials(nil)
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

// A handler can flush its output in both ways that net/http supports.
func TestWatchedAnswersFlush(t *testing.T) {
	for name, flush := range map[string]func(http.ResponseWriter) error{
		"controller": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
		"flusher":    func(w http.ResponseWriter) error { w.(http.Flusher).Flush(); return nil },
	} {
		r := httptest.NewRecorder()
		a := &answerWriter{ResponseWriter: r, wroteHeader: true}
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
