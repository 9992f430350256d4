package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/keyward/keyward/internal/browser"
)

//go:embed demo.html
var demoPage []byte

// demoState is the document that the page draws.
type demoState struct {
	Seconds float64      `json:"seconds"`
	Direct  string       `json:"direct"`
	Above   string       `json:"above"`
	Busy    string       `json:"busy"`
	Keys    []demoRow    `json:"keys"`
	Members []demoMember `json:"members"`
	Notes   []string     `json:"notes"`
	Acts    []demoAct    `json:"acts"`
}

type demoRow struct {
	Name    string `json:"name"`
	Owner   string `json:"owner"`
	Sent    int64  `json:"sent"`
	Allowed int64  `json:"allowed"`
	Most    int64  `json:"most"`
	Denied  int64  `json:"denied"`
}

type demoMember struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Page  string `json:"page"`
}

type demoAct struct {
	Name string `json:"name"`
	What string `json:"what"`
}

// page serves the demo's page on addr and prints its address.
func (s *stage) page(out io.Writer, addr string) (stop func(), err error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve the demo's page: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(demoPage)
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.snapshot(r.Context()))
	})
	mux.HandleFunc("POST /act/{name}", s.clicked)
	hosts := new(browser.Hosts)
	srv := &http.Server{Handler: hosts.Guard(mux, func(string) {}), ReadHeaderTimeout: 5 * time.Second}
	fmt.Fprintf(out, "  demo page: http://%s/   admin page of a sidecar: http://%s/\n", ln.Addr(), s.pages[0])
	return serveHTTP(srv, ln), nil
}

// clicked handles a button of the page. Pages of other sites cannot set the header.
func (s *stage) clicked(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Keyward-Demo") == "" {
		http.Error(w, "not from this page", http.StatusForbidden)
		return
	}
	for _, a := range acts() {
		if a.name != r.PathValue("name") {
			continue
		}
		if s.busy() || !s.ask(a) {
			http.Error(w, "another action is running", http.StatusConflict)
		}
		return
	}
	http.NotFound(w, r)
}

func (s *stage) snapshot(ctx context.Context) demoState {
	now, r := time.Now(), s.at(ctx)
	direct, misrouted := s.directHits()
	st := demoState{Seconds: max(0, now.Sub(s.start).Seconds()), Direct: ratio(direct, misrouted), Above: s.above(now)}
	for _, k := range s.keys {
		st.Keys = append(st.Keys, demoRow{
			Name: k.name, Owner: s.owner(r, k), Sent: int64(k.rate) + k.extra.Load(),
			Allowed: k.allowed.Load(), Most: k.most(s.start, now), Denied: k.denied.Load(),
		})
	}
	for _, a := range acts() {
		st.Acts = append(st.Acts, demoAct{a.name, a.what})
	}
	s.set(func() {
		st.Busy, st.Notes = s.now, append(st.Notes, s.notes...)
		for i, name := range s.names {
			st.Members = append(st.Members, demoMember{name, s.state[name], "http://" + s.pages[i] + "/"})
		}
	})
	return st
}
