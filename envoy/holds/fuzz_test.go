package holds

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keyward/keyward/envoy/holds/client"
	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
	"github.com/keyward/keyward/owner"
)

// FuzzDecode decodes any bytes as the request of each call. What is accepted is within the limits.
func FuzzDecode(f *testing.F) {
	acme := client.One("tenant", "acme")
	for _, m := range []proto.Message{
		&pb.ReserveRequest{Domain: "llm", Descriptors: acme, Hits: 5, Id: "x", Caller: "y", Ttl: durationpb.New(minTTL)},
		&pb.CommitRequest{Domain: "llm", Descriptors: acme, Id: "x", Actual: proto.Uint64(7)},
		&pb.ExtendRequest{Domain: "llm", Descriptors: acme, Id: "x", Ttl: durationpb.New(maxTTL)},
		&pb.UsageRequest{Domain: "llm", Descriptors: acme},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	r := start(f)
	methods := r.Methods()
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, h := range methods {
			m, ok := h.(*unary)
			if !ok {
				continue
			}
			req := m.verb.request()
			if decode(b, req) != nil {
				continue
			}
			p, err := m.verb.plan(req)
			if err != nil || p.answer != nil {
				continue
			}
			checkPlan(t, name, p)
			c := r.service.NewCall()
			p.fill(c)
			r.service.BeginHold(c, p.hold, fuzzCaller, nil)
			if c.Err == nil {
				m.verb.answer(c, p)
			}
			r.service.Release(c)
		}
	})
}

// checkPlan checks what must be true of every call that is accepted.
func checkPlan(t *testing.T, name string, p *plan) {
	t.Helper()
	if p.domain == "" || len(p.descriptors) == 0 || len(p.descriptors) > maxDescriptors || len(p.caller) > maxID || len(p.hold.ID) > maxID {
		t.Errorf("%s: %+v", name, p)
	}
	if p.hold.Op >= owner.Reserve && p.hold.ID == "" || p.hold.TTL != 0 && (p.hold.TTL < minTTL || p.hold.TTL > maxTTL) {
		t.Errorf("%s: %+v", name, p.hold)
	}
	for _, d := range p.descriptors {
		if len(d.Entries) == 0 || len(d.Entries) > maxEntries || d.Refund || d.Override.Set {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// FuzzJSON sends any body to each path.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"domain": "llm", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}], "hits": 3}], "id": "x", "ttl": "60s"}`))
	f.Add([]byte(`{"domain": "llm", "descriptors": [null], "hits": 1e9}`))
	r := start(f)
	handlers := r.Handlers()
	f.Fuzz(func(t *testing.T, body []byte) {
		for path, h := range handlers {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
			if w.Code == http.StatusInternalServerError || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
	})
}
