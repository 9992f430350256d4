package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/keyward/keyward/internal/api"
)

// TapQuery selects decisions. The zero value of a field selects all.
type TapQuery struct {
	Domain string
	Key    string  // a substring of TapDecision.Descriptor
	Over   bool    // over the limit only
	Rate   float64 // decisions per second, at most
}

// The default and the largest rate of a tap, in decisions per second.
const (
	tapRate    = 10
	tapMaxRate = 1000
)

// tapBuffer is the number of decisions that wait for a slow reader. Further ones are dropped.
const tapBuffer = 256

// tap serves GET /v1/tap?n=&rate=&domain=&key=&over=true. The answer has one line of JSON for each decision and ends
// after n of them, or when the client disconnects.
func tap(listen func(TapQuery, func(api.TapDecision)) (stop func())) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, n, err := parseTap(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ready := make(chan api.TapDecision, tapBuffer)
		stop := listen(q, func(d api.TapDecision) {
			select {
			case ready <- d:
			default:
			}
		})
		defer stop()
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines, flush := json.NewEncoder(w), http.NewResponseController(w)
		_ = flush.Flush() // the headers report that the tap is active
		for sent := 0; n == 0 || sent < n; sent++ {
			select {
			case d := <-ready:
				if errors.Join(lines.Encode(d), flush.Flush()) != nil {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	}
}

func parseTap(v url.Values) (q TapQuery, n int, err error) {
	q = TapQuery{Domain: v.Get("domain"), Key: v.Get("key"), Rate: tapRate}
	var errs []error
	if s := v.Get("n"); s != "" {
		if n, err = strconv.Atoi(s); err != nil || n < 0 {
			errs = append(errs, fmt.Errorf("n=%q: want a whole number", s))
		}
	}
	if s := v.Get("rate"); s != "" {
		if q.Rate, err = strconv.ParseFloat(s, 64); err != nil || !(q.Rate > 0 && q.Rate <= tapMaxRate) {
			errs = append(errs, fmt.Errorf("rate=%q: want a number above 0, at most %d", s, tapMaxRate))
		}
	}
	if s := v.Get("over"); s != "" {
		if q.Over, err = strconv.ParseBool(s); err != nil {
			errs = append(errs, fmt.Errorf("over=%q: want true or false", s))
		}
	}
	return q, n, errors.Join(errs...)
}
