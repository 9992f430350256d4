package admin

import (
	"bytes"
	"maps"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
)

const (
	maxRenders     = 1                // pages that are made at once
	renderWait     = 2 * time.Second  // for which a request waits until its page is made
	maxPageBytes   = 8 << 20          // bytes of pages that are being sent
	minSendTime    = time.Second      // that a client has to read a page while others have no room
	collectAfter   = 2 << 20          // bytes of pages
	writeTime      = 10 * time.Second // that it has otherwise
	lookupInterval = time.Second / 50 // between questions about keys, in the long run
	lookupBurst    = 100              // of them at once

	busy           = "busy" // reason for Options.Refuse
	tooManyLookups = "too many questions about keys at once: 50 a second are answered"
	tooManyPages   = "too many pages are asked for at once"
)

// pageLimiter makes few pages at once and bounds what is sent to clients that read slowly. A page is made in memory first, so that a
// client that does not read it does not keep others from theirs. Requests that wait for the same page get one page, which is
// made after all of them came. Where there is no room for another one, the client that has
// been reading longest is cut, if it had its time.
type pageLimiter struct {
	refuse  func(reason string)
	renders chan struct{}
	made    int // bytes of pages since the last collection; of who has a place in renders

	mu      sync.Mutex
	next    map[string]*renderedPage // guarded by mu: pages that have not been begun
	sending []*transmission          // guarded by mu; the oldest first
	held    int                      // guarded by mu: bytes of them
}

// transmission is a page on its way.
type transmission struct {
	to    *http.ResponseController
	size  int
	since time.Time
}

func newPageLimiter(refuse func(string)) *pageLimiter {
	if refuse == nil {
		refuse = func(string) {}
	}
	return &pageLimiter{refuse: refuse, renders: make(chan struct{}, maxRenders), next: map[string]*renderedPage{}}
}

// wrap serves next within the bounds.
func (p *pageLimiter) wrap(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m := p.page(next, r)
		s := &transmission{to: http.NewResponseController(w), size: len(m.bytes), since: time.Now()}
		if m.status == 0 || !p.begin(s) {
			p.tooMany(w, tooManyPages)
			return
		}
		defer p.end(s)
		maps.Copy(w.Header(), m.header)
		w.WriteHeader(m.status)
		_, _ = w.Write(m.bytes) // a client that went away is nobody's fault
	}
}

// normalize is r with nothing in it but what decides about a page: no parameters, since no page has any, and of the headers the format and whether it is
// to be compressed. So there are few different pages, however clients ask for them.
func normalize(r *http.Request) *http.Request {
	format, _, _ := strings.Cut(string(expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)), "; escaping=")
	out := *r
	out.URL, out.Header = &url.URL{Path: r.URL.Path}, http.Header{"Accept": {format}}
	if acceptsGzip(r.Header) {
		out.Header.Set("Accept-Encoding", "gzip")
	}
	return &out
}

// acceptsGzip reports whether a client with these headers reads gzip.
func acceptsGzip(h http.Header) bool {
	for _, v := range h.Values("Accept-Encoding") {
		for coding := range strings.SplitSeq(v, ",") {
			name, q, _ := strings.Cut(coding, ";")
			if strings.EqualFold(strings.TrimSpace(name), "gzip") {
				n, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(q), "q="), 64)
				return err != nil || n > 0
			}
		}
	}
	return false
}

// page is the page that r asks for. It has no status where it could not be made in time.
func (p *pageLimiter) page(next http.Handler, r *http.Request) *renderedPage {
	r = normalize(r)
	key := strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("Accept"), r.Header.Get("Accept-Encoding")}, "\n")
	p.mu.Lock()
	m, others := p.next[key]
	if !others {
		m = &renderedPage{header: http.Header{}, done: make(chan struct{})}
		p.next[key] = m
	}
	p.mu.Unlock()
	if others {
		<-m.done
		return m
	}
	defer close(m.done)
	wait := time.NewTimer(renderWait)
	defer wait.Stop()
	select {
	case p.renders <- struct{}{}:
		defer func() { <-p.renders }()
		p.start(key)
		m.render(next, r)
		p.collect(len(m.bytes))
	case <-wait.C:
		p.start(key)
	}
	return m
}

// collect frees what pages were made of, which is several times as much as they are, before others are made: clients that ask for them all the
// time would have the heap grow by all that can be made between two collections. The caller has a place in renders.
func (p *pageLimiter) collect(bytes int) {
	if p.made += bytes; p.made >= collectAfter {
		p.made = 0
		runtime.GC()
	}
}

// start has requests that come from now on wait for another page.
func (p *pageLimiter) start(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.next, key)
}

// begin reports whether there is room for a page.
func (p *pageLimiter) begin(s *transmission) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.sending) > 0 && p.held+s.size > maxPageBytes {
		oldest := p.sending[0]
		if s.since.Sub(oldest.since) < minSendTime {
			return false
		}
		p.refuse(busy)
		_ = oldest.to.SetWriteDeadline(time.Unix(1, 0))
		p.dropLocked(0)
	}
	p.sending, p.held = append(p.sending, s), p.held+s.size
	return true
}

// end forgets a page that was sent.
func (p *pageLimiter) end(s *transmission) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.sending, s); i >= 0 {
		p.dropLocked(i)
	}
}

func (p *pageLimiter) dropLocked(i int) {
	p.held -= p.sending[i].size
	p.sending = slices.Delete(p.sending, i, i+1)
}

// tooMany answers a request for which there is no room.
func (p *pageLimiter) tooMany(w http.ResponseWriter, why string) {
	p.refuse(busy)
	w.Header().Set("Retry-After", "1")
	http.Error(w, why, http.StatusServiceUnavailable)
}

// renderedPage is a page in memory.
type renderedPage struct {
	done   chan struct{} // closed once it is made, or will not be
	header http.Header
	status int
	body   *bytes.Buffer // while it is made
	bytes  []byte        // once it is
}

// render makes it.
func (m *renderedPage) render(next http.Handler, r *http.Request) {
	m.body = renderBuffers.Get().(*bytes.Buffer)
	next.ServeHTTP(m, r)
	m.WriteHeader(http.StatusOK)
	m.bytes = bytes.Clone(m.body.Bytes()) // without the room to grow
	m.body.Reset()
	renderBuffers.Put(m.body)
	m.body = nil
}

// renderBuffers are where pages are made.
var renderBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Header is the header of the answer.
func (m *renderedPage) Header() http.Header { return m.header }

// WriteHeader notes the status.
func (m *renderedPage) WriteHeader(status int) {
	if m.status == 0 {
		m.status = status
	}
}

// Write adds to the page.
func (m *renderedPage) Write(b []byte) (int, error) {
	m.WriteHeader(http.StatusOK)
	return m.body.Write(b)
}

// lookupLimiter rations the questions about keys, of which each may be one to another member.
type lookupLimiter struct {
	pages *pageLimiter

	mu   sync.Mutex
	left int       // guarded by mu
	at   time.Time // guarded by mu: up to when time has given
}

func newLookupLimiter(p *pageLimiter) *lookupLimiter {
	return &lookupLimiter{pages: p, left: lookupBurst}
}

// wrap serves next at most so often.
func (l *lookupLimiter) wrap(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !l.take(time.Now()) {
			l.pages.tooMany(w, tooManyLookups)
			return
		}
		next.ServeHTTP(w, r)
	}
}

func (l *lookupLimiter) take(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if more := int(min(now.Sub(l.at), time.Hour) / lookupInterval); more > 0 {
		l.left, l.at = min(l.left+more, lookupBurst), now
	}
	if l.left == 0 {
		return false
	}
	l.left--
	return true
}
