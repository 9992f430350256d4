package mirror

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/status"
)

// reason states why a call was not compared.
type reason string

const (
	tooMany    reason = "too_many_open" // Options.InFlight was reached
	oldFailed  reason = "old_failed"
	newFailed  reason = "new_failed"
	bothFailed reason = "both_failed"
)

func reasons() []reason { return []reason{tooMany, oldFailed, newFailed, bothFailed} }

// report counts the results, and logs some of them.
type report struct {
	metrics *metrics
	started time.Time
	front   string

	mu      sync.Mutex
	log     io.Writer     // guarded by mu; nil for none
	lines   *rate.Limiter // has its own lock
	counts  counts        // guarded by mu
	lastErr [2]string     // guarded by mu; of the old and the new service
}

// counts are the compared calls that the two services admitted.
type counts struct{ oldOK, newOK, same uint64 }

func newReport(o Options) *report {
	if o.LogRate <= 0 {
		o.LogRate = 10
	}
	front := "old"
	if o.AnswerNew {
		front = "new"
	}
	return &report{
		metrics: newMetrics(o.Registerer), started: time.Now(), front: front,
		log: o.Log, lines: rate.NewLimiter(rate.Limit(o.LogRate), max(1, int(o.LogRate))),
	}
}

func (r *report) answered(isNew bool, o *outcome) {
	service, at := "old", 0
	if isNew {
		service, at = "new", 1
	}
	code := "error"
	if o.err == nil {
		code = "ok"
		if decode(o.out.data).OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
			code = "over_limit"
		}
	} else {
		r.mu.Lock()
		r.lastErr[at] = o.err.Error()
		r.mu.Unlock()
	}
	r.metrics.requests.WithLabelValues(service, code).Inc()
	r.metrics.seconds.WithLabelValues(service).Observe(o.took.Seconds())
}

func (r *report) notCompared(why reason) { r.metrics.notCompared.WithLabelValues(string(why)).Inc() }

func (r *report) counted(a, b *rlsv3.RateLimitResponse) {
	r.metrics.compared.Inc()
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
		r.counts.oldOK++
	}
	if b.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
		r.counts.newOK++
	}
}

func (r *report) agreed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.same++
}

// logLine is one line of the log. Fields are only ever added.
type logLine struct {
	Time        time.Time   `json:"time"`
	Class       Class       `json:"class"`
	Known       string      `json:"known,omitempty"` // the entry in docs/differences.md
	Fields      []string    `json:"fields"`
	Domain      string      `json:"domain"`
	Descriptors []string    `json:"descriptors"`
	Hits        uint64      `json:"hits"`
	Old         loggedReply `json:"old"`
	New         loggedReply `json:"new"`
}

// loggedReply is the response of one service.
type loggedReply struct {
	Code     string            `json:"code"`
	Error    string            `json:"error,omitempty"`
	Statuses []loggedStatus    `json:"statuses,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
	Millis   float64           `json:"ms"`
}

// loggedStatus is the status of one descriptor in a response.
type loggedStatus struct {
	Code      string `json:"code"`
	Limit     string `json:"limit,omitempty"` // amount/UNIT
	Remaining uint32 `json:"remaining"`
	Reset     int64  `json:"reset_seconds"`
}

// difference counts and logs a difference in the given fields.
func (r *report) difference(c *call, found finding, old, new *outcome) {
	class, fields := found.class, found.fields
	r.metrics.differences.WithLabelValues(string(class)).Inc()
	if class == other {
		for _, f := range fields {
			r.metrics.fields.WithLabelValues(f).Inc()
		}
	}
	if r.log == nil || !r.lines.Allow() {
		return
	}
	d := logLine{
		Time: time.Unix(0, c.begin).UTC(), Class: class, Known: c.known, Fields: fields, Domain: c.request.Domain, Hits: c.hits,
		Old: newAnswer(old), New: newAnswer(new),
	}
	for i := range c.request.Descriptors {
		d.Descriptors = append(d.Descriptors, name(c, i))
	}
	line, err := json.Marshal(d)
	if err != nil {
		return // it cannot fail
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = r.log.Write(append(line, '\n')) // there is no place to report an error
}

// maxName is the maximum length of a descriptor in the log, in bytes.
const maxName = 512

func name(c *call, i int) string {
	var b strings.Builder
	for n, e := range c.request.Descriptors[i].Entries {
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteString(e.Key + "=" + e.Value)
	}
	return strings.ToValidUTF8(b.String()[:min(maxName, b.Len())], "\uFFFD")
}

func newAnswer(o *outcome) loggedReply {
	a := loggedReply{Millis: float64(o.took.Microseconds()) / 1000}
	if o.err != nil {
		a.Code, a.Error = status.Code(o.err).String(), o.err.Error()
		return a
	}
	res := decode(o.out.data)
	a.Code = res.OverallCode.String()
	for _, s := range res.Statuses {
		st := loggedStatus{Code: s.Code.String(), Remaining: s.LimitRemaining, Reset: s.DurationUntilReset.GetSeconds()}
		if l := s.CurrentLimit; l != nil {
			st.Limit = fmt.Sprintf("%d/%s", l.RequestsPerUnit, l.Unit)
		}
		a.Statuses = append(a.Statuses, st)
	}
	for _, h := range res.ResponseHeadersToAdd {
		if a.Headers == nil {
			a.Headers = map[string]string{}
		}
		a.Headers[h.Key] = h.Value
	}
	return a
}

// Totals contains all results. Fields are only ever added.
type Totals struct {
	Since       time.Time         `json:"since"`
	Answers     string            `json:"answers"` // the service whose decisions callers get: old or new
	Compared    uint64            `json:"compared"`
	Same        uint64            `json:"same"`
	Differences map[Class]uint64  `json:"differences"`
	NotCompared map[reason]uint64 `json:"not_compared"`
	FellBack    uint64            `json:"fallbacks"`
	Old         ServiceSummary    `json:"old"`
	New         ServiceSummary    `json:"new"`
	Ratio       float64           `json:"ratio"` // of the compared calls: admitted by the new service / admitted by the old
	Verdict     string            `json:"verdict"`
}

// ServiceSummary contains the results of one service.
type ServiceSummary struct {
	OK        uint64  `json:"ok"`
	OverLimit uint64  `json:"over_limit"`
	Errors    uint64  `json:"errors"`
	LastError string  `json:"last_error,omitempty"`
	Admitted  uint64  `json:"admitted"` // of the compared calls
	P50       float64 `json:"p50_ms"`   // upper bound
	P99       float64 `json:"p99_ms"`
}

// Totals returns the results so far.
func (m *Mirror) Totals() Totals { return m.report.summary() }

func (r *report) summary() Totals {
	s := Totals{
		Since: r.started.UTC(), Answers: r.front, Compared: number(r.metrics.compared), FellBack: number(r.metrics.fellBack),
		Differences: map[Class]uint64{}, NotCompared: map[reason]uint64{},
	}
	for _, c := range classes() {
		s.Differences[c] = number(r.metrics.differences.WithLabelValues(string(c)))
	}
	for _, why := range reasons() {
		s.NotCompared[why] = number(r.metrics.notCompared.WithLabelValues(string(why)))
	}
	s.Old, s.New = r.service("old"), r.service("new")
	r.mu.Lock()
	s.Same, s.Old.Admitted, s.New.Admitted = r.counts.same, r.counts.oldOK, r.counts.newOK
	s.Old.LastError, s.New.LastError = r.lastErr[0], r.lastErr[1]
	r.mu.Unlock()
	if s.Old.Admitted > 0 {
		s.Ratio = float64(s.New.Admitted) / float64(s.Old.Admitted)
	}
	s.Verdict = s.verdict()
	return s
}

func (r *report) service(name string) ServiceSummary {
	n := func(code string) uint64 { return number(r.metrics.requests.WithLabelValues(name, code)) }
	took, ok := r.metrics.seconds.WithLabelValues(name).(prometheus.Metric)
	s := ServiceSummary{OK: n("ok"), OverLimit: n("over_limit"), Errors: n("error")}
	if ok {
		s.P50, s.P99 = 1000*quantile(took, 0.5), 1000*quantile(took, 0.99)
	}
	return s
}

// verdict summarizes the results in a sentence.
func (s *Totals) verdict() string {
	switch lost := s.NotCompared[newFailed] + s.NotCompared[bothFailed]; {
	case s.Compared == 0:
		return "no calls were compared yet"
	case s.Differences[other] > 0:
		return fmt.Sprintf("%d unexplained differences: investigate them before you continue", s.Differences[other])
	case lost > 0:
		return fmt.Sprintf("all differences are explained, but %d calls to the new service failed", lost)
	case s.Differences[firstWindow] > s.Compared/2:
		return "all differences are explained, but the windows that began before the mirror have not ended yet"
	}
	return "all differences are explained"
}

// Text writes the summary as text.
func (s *Totals) Text(out io.Writer) error {
	fmt.Fprintf(out, "Since %s: %s. Callers get the responses of the %s service.\n\n", s.Since.Format(time.RFC3339),
		s.Verdict, s.Answers)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tOLD\tNEW")
	row := func(name string, old, new any) { fmt.Fprintf(t, "%s\t%v\t%v\n", name, old, new) }
	row("ok", s.Old.OK, s.New.OK)
	row("over limit", s.Old.OverLimit, s.New.OverLimit)
	row("errors", s.Old.Errors, s.New.Errors)
	row("admitted, of those compared", s.Old.Admitted, s.New.Admitted)
	row("median, at most", fmt.Sprintf("%.3g ms", s.Old.P50), fmt.Sprintf("%.3g ms", s.New.P50))
	row("99th percentile, at most", fmt.Sprintf("%.3g ms", s.Old.P99), fmt.Sprintf("%.3g ms", s.New.P99))
	fmt.Fprintf(t, "\nadmitted, new / old\t%.4f\n", s.Ratio)
	fmt.Fprintf(t, "compared\t%d\n  the same\t%d\n", s.Compared, s.Same)
	for _, c := range classes() {
		fmt.Fprintf(t, "  differ: %s\t%d\t%s\n", strings.ReplaceAll(string(c), "_", " "), s.Differences[c], meanings()[c])
	}
	for _, why := range reasons() {
		if n := s.NotCompared[why]; n > 0 {
			fmt.Fprintf(t, "not compared: %s\t%d\n", strings.ReplaceAll(string(why), "_", " "), n)
		}
	}
	if s.FellBack > 0 {
		fmt.Fprintf(t, "answered by the old service because the new one failed\t%d\n", s.FellBack)
	}
	if s.Old.LastError != "" {
		fmt.Fprintf(t, "last error of the old service\t%s\n", s.Old.LastError)
	}
	if s.New.LastError != "" {
		fmt.Fprintf(t, "last error of the new service\t%s\n", s.New.LastError)
	}
	return t.Flush()
}

func meanings() map[Class]string {
	return map[Class]string{
		known:       "listed in docs/differences.md",
		firstWindow: "in windows that began before the mirror started",
		missed:      "in windows in which a call reached only one service",
		windowEdge:  "called as the window ended",
		order:       "no more than the concurrent calls",
		other:       "unexplained",
	}
}
