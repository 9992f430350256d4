package gateways

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// openAIPorts are the ports of the upstreams, by their names.
var openAIPorts = map[string]int{"application": 3001, "reserve": 3002}

// tokensHeader is the total number of tokens that the upstream reports for a request; without it there are none.
const tokensHeader = "x-tokens"

// upstreamHeader names the upstream in its replies.
const upstreamHeader = "x-upstream"

// completion is the body of a request for chat completions.
type completion struct {
	Model         string         `json:"model"`
	Messages      []chatMessage  `json:"messages"`
	Stream        bool           `json:"stream,omitempty"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// startOpenAI serves OpenAI's chat completions, at the ports of all upstreams, until the test ends.
func startOpenAI(t testing.TB) error {
	for name, port := range openAIPorts {
		ln, err := net.Listen("tcp", net.JoinHostPort(bridgeIP, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(upstreamHeader, name)
			serveCompletion(w, r)
		})}
		go func() { _ = srv.Serve(ln) }()
		t.Cleanup(func() { srv.Close() })
	}
	return nil
}

// serveCompletion answers with one message, or with a stream of events whose last one has the usage if the request asks for it.
func serveCompletion(w http.ResponseWriter, r *http.Request) {
	var c completion
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || r.URL.Path != "/v1/chat/completions" {
		http.Error(w, fmt.Sprintf(`{"error": {"message": "%s: %v"}}`, r.URL.Path, err), http.StatusBadRequest)
		return
	}
	total, _ := strconv.Atoi(r.Header.Get(tokensHeader))
	usage := fmt.Sprintf(`{"prompt_tokens": %d, "completion_tokens": %d, "total_tokens": %d}`, total/4, total-total/4, total)
	const reply = `"id": "chatcmpl-1", "created": 1700000000, "model": %q`
	if !c.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"object": "chat.completion", `+reply+`, "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}], "usage": %s}`, c.Model, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(rest string, args ...any) {
		fmt.Fprintf(w, "data: "+`{"object": "chat.completion.chunk", `+reply+", "+rest+"}\n\n", append([]any{c.Model}, args...)...)
		w.(http.Flusher).Flush()
	}
	for word := range strings.FieldsSeq("this is a stream") {
		event(`"choices": [{"index": 0, "delta": {"content": %q}}]`, word)
	}
	event(`"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]`)
	if c.StreamOptions != nil && c.StreamOptions.IncludeUsage {
		event(`"choices": [], "usage": %s`, usage)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
