package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// TapDecision is one decision about one descriptor, as /v1/tap shows it.
type TapDecision struct {
	Time       time.Time `json:"time"`
	Member     string    `json:"member"` // that was asked
	Domain     string    `json:"domain"`
	Descriptor string    `json:"descriptor"`     // k=v,k2=v2
	Rule       string    `json:"rule,omitempty"` // that it met
	Hits       int64     `json:"hits"`           // below 0: given back
	Code       string    `json:"code"`           // OK or OVER_LIMIT
	// The rest is there when a limit was asked about.
	Path      string  `json:"path,omitempty"` // local, forwarded, lease or degraded
	Authority string  `json:"authority,omitempty"`
	Owner     string  `json:"owner,omitempty"` // the member that counts the key
	Limit     *uint32 `json:"limit,omitempty"`
	Remaining *uint32 `json:"remaining,omitempty"`
}

// TapQuery chooses decisions; empty fields choose all.
type TapQuery struct {
	Domain string
	Key    string  // a part of Descriptor
	Over   bool    // over the limit only
	Rate   float64 // the most a second
}

// The rates of a tap, decisions a second.
const (
	tapRate    = 10
	tapMaxRate = 1000
)

// tapAhead is how many decisions wait for a slow reader; more are dropped.
const tapAhead = 256

// tap answers GET /v1/tap?n=&rate=&domain=&key=&over=true with one line of JSON a decision, n of them, or as long as
// somebody reads.
func tap(listen func(TapQuery, func(TapDecision)) (stop func())) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, n, err := parseTap(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ready := make(chan TapDecision, tapAhead)
		stop := listen(q, func(d TapDecision) {
			select {
			case ready <- d:
			default:
			}
		})
		defer stop()
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines, flush := json.NewEncoder(w), http.NewResponseController(w)
		_ = flush.Flush() // so that the reader knows that it listens
		for told := 0; n == 0 || told < n; told++ {
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
