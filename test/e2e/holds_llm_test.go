package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// llm is a model server in the shape of OpenAI's: it streams chunks, and names the tokens of the request at the end. The
// request's headers choose what it does.
type llm struct {
	addr    string
	spent   atomic.Int64 // tokens of the answers that it began, whether or not the client or the usage came through
	serving atomic.Int64 // requests that it serves now
	gates   [16]chan struct{}
}

// Headers of requests to an llm.
const (
	usageHeader  = "x-usage"  // tokens of the answer
	noUsage      = "x-quiet"  // the answer does not name them
	statusHeader = "x-status" // the answer is an error
	holdHeader   = "x-hold"   // the answer ends when the gate with this number opens
)

func startLLM(t testing.TB) *llm {
	t.Helper()
	m := &llm{}
	for i := range m.gates {
		m.gates[i] = make(chan struct{})
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.addr = ln.Addr().String()
	srv := &http.Server{Handler: http.HandlerFunc(m.serve), Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close() })
	return m
}

func (m *llm) serve(w http.ResponseWriter, r *http.Request) {
	m.serving.Add(1)
	defer m.serving.Add(-1)
	_, _ = io.Copy(io.Discard, r.Body)
	if status, err := strconv.Atoi(r.Header.Get(statusHeader)); err == nil {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"message":"overloaded"}}`)
		return
	}
	tokens, _ := strconv.Atoi(r.Header.Get(usageHeader))
	m.spent.Add(int64(tokens))
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	for range 3 {
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}],\"usage\":null}\n\n")
		_ = flush()
	}
	if gate, err := strconv.Atoi(r.Header.Get(holdHeader)); err == nil {
		select {
		case <-m.gates[gate]:
		case <-r.Context().Done():
			return
		}
	}
	if r.Header.Get(noUsage) == "" { // in two parts, as a provider may
		_, _ = io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"total_tok")
		_ = flush()
		_, _ = fmt.Fprintf(w, "ens\": %d}}\n\n", tokens)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// prompt is a request for at most this many tokens.
type prompt struct {
	tenant    string
	maxTokens int
	headers   map[string]string
	unlimited bool // no limit of requests in flight applies
}

// estimate returns the tokens that Envoy reserves for p: a token for each byte of the body, and the tokens of the answer.
func (p *prompt) estimate() int { return len(p.body()) + p.maxTokens }

func (p *prompt) body() []byte {
	return fmt.Appendf(nil, `{"model":"m","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hello"}]}`, p.maxTokens)
}

// start sends p and returns the response when its headers have come.
func (p *prompt) start(ctx context.Context, client *http.Client, envoy string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+envoy+"/v1/chat/completions", bytes.NewReader(p.body()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("x-tenant", p.tenant)
	if !p.unlimited {
		req.Header.Set("x-streams", p.tenant)
	}
	for k, v := range p.headers {
		req.Header.Set(k, v)
	}
	return client.Do(req)
}

// send sends p and returns the status when the answer has ended.
func (p *prompt) send(t testing.TB, client *http.Client, envoy string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	res, err := p.start(ctx, client, envoy)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode
}

func readText(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
