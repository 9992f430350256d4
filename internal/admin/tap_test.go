package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/keyward/keyward/internal/api"
)

func TestTap(t *testing.T) {
	var asked []TapQuery
	shown, ended := make(chan func(api.TapDecision), 1), make(chan struct{}, 10)
	srv := httptest.NewServer(SocketHandler(SocketOptions{Tap: func(q TapQuery, see func(api.TapDecision)) (stop func()) {
		asked = append(asked, q)
		shown <- see
		return func() { ended <- struct{}{} }
	}}))
	defer srv.Close()
	res, err := http.Get(srv.URL + "/v1/tap?n=2&rate=50&domain=d&key=k%3Dv&over=true") // returns before there is a decision
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if want := (TapQuery{Domain: "d", Key: "k=v", Over: true, Rate: 50}); len(asked) != 1 || asked[0] != want {
		t.Errorf("%+v, want %+v", asked, want)
	}
	see := <-shown
	for _, name := range []string{"k=1", "k=2", "k=3"} {
		see(api.TapDecision{Descriptor: name})
	}
	lines := json.NewDecoder(res.Body)
	var got []string
	for {
		var d api.TapDecision
		if lines.Decode(&d) != nil {
			break
		}
		got = append(got, d.Descriptor)
	}
	if len(got) != 2 || got[0] != "k=1" || got[1] != "k=2" {
		t.Errorf("got %v, want the first two", got)
	}
	<-ended
	for range 10 * tapBuffer { // without a reader: nothing blocks
		see(api.TapDecision{})
	}
}

func TestTapEndsWithItsReader(t *testing.T) {
	ended := make(chan struct{})
	srv := httptest.NewServer(SocketHandler(SocketOptions{Tap: func(TapQuery, func(api.TapDecision)) (stop func()) {
		return func() { close(ended) }
	}}))
	defer srv.Close()
	res, err := http.Get(srv.URL + "/v1/tap")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	<-ended
}

func TestTapRefuses(t *testing.T) {
	srv := httptest.NewServer(SocketHandler(SocketOptions{Tap: func(TapQuery, func(api.TapDecision)) (stop func()) {
		t.Error("listens")
		return func() {}
	}}))
	defer srv.Close()
	for _, query := range []string{"n=x", "n=-1", "rate=0", "rate=1001", "rate=NaN", "rate=many", "over=perhaps"} {
		if res, err := http.Get(srv.URL + "/v1/tap?" + query); err != nil || res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %v %v", query, res.Status, err)
		}
	}
}
