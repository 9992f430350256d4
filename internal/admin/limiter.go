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
	maxRenders     = 1                // pages rendered at a time
	renderWait     = 2 * time.Second  // how long a request waits for its page to be rendered
	maxPageBytes   = 8 << 20          // bytes of pages being sent
	minSendTime    = time.Second      // for a client to read a page while others have no room
	collectAfter   = 2 << 20          // bytes of rendered pages after which garbage is collected
	writeTime      = 10 * time.Second // for a client to read a page otherwise
	lookupInterval = time.Second / 50 // between requests about keys, on average
	lookupBurst    = 100              // requests about keys in a burst

	busy           = "busy" // reason for Options.Refuse
	tooManyLookups = "too many requests about keys: 50 per second are answered"
	tooManyPages   = "too many requests for pages"
)

// pageLimiter bounds the work and the memory for pages. It renders one page at a time, into memory, so that a client
// that reads slowly does not block others. Requests that wait for the same page share one, which is rendered after
// the last of them arrived. When the pages being sent exceed maxPageBytes, it disconnects the client that has been
// reading longest, if that had minSendTime.
type pageLimiter struct {
	refuse  func(reason string)
	renders chan struct{}
	made    int // bytes of pages since the last collection; guarded by a place in renders

	mu      sync.Mutex
	next    map[string]*renderedPage // guarded by mu: pages that are not being rendered yet
	sending []*transmission          // guarded by mu; oldest first
	held    int                      // guarded by mu: bytes of sending
}

// transmission is a page being sent.
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
		_, _ = w.Write(m.bytes) // the client has disconnected
	}
}

// normalize returns r reduced to what determines a page: the path, the format, and whether to compress. Pages have no
// parameters. So few pages differ, however clients request them.
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

// page returns the page for r. Its status is 0 if it could not be rendered in time.
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

// collect collects garbage after collectAfter bytes of pages. Rendering allocates several times the size of a page;
// clients that request pages all the time would let the heap grow by all that is rendered between two collections.
// The caller has a place in renders.
func (p *pageLimiter) collect(bytes int) {
	if p.made += bytes; p.made >= collectAfter {
		p.made = 0
		runtime.GC()
	}
}

// start makes later requests wait for another page.
func (p *pageLimiter) start(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.next, key)
}

// begin reserves room for a page and reports whether there was any.
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

// end releases the room of a page that was sent.
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

// tooMany refuses a request for lack of room.
func (p *pageLimiter) tooMany(w http.ResponseWriter, why string) {
	p.refuse(busy)
	w.Header().Set("Retry-After", "1")
	http.Error(w, why, http.StatusServiceUnavailable)
}

// renderedPage is a page in memory. It is the http.ResponseWriter of its handler.
type renderedPage struct {
	done   chan struct{} // closed when it is rendered, or has timed out
	header http.Header
	status int
	body   *bytes.Buffer // while it is rendered
	bytes  []byte        // after that
}

// render calls next to render the page.
func (m *renderedPage) render(next http.Handler, r *http.Request) {
	m.body = renderBuffers.Get().(*bytes.Buffer)
	next.ServeHTTP(m, r)
	m.WriteHeader(http.StatusOK)
	m.bytes = bytes.Clone(m.body.Bytes()) // without spare capacity
	m.body.Reset()
	renderBuffers.Put(m.body)
	m.body = nil
}

// renderBuffers holds buffers to render pages into.
var renderBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Header implements http.ResponseWriter.
func (m *renderedPage) Header() http.Header { return m.header }

// WriteHeader implements http.ResponseWriter.
func (m *renderedPage) WriteHeader(status int) {
	if m.status == 0 {
		m.status = status
	}
}

// Write implements http.ResponseWriter.
func (m *renderedPage) Write(b []byte) (int, error) {
	m.WriteHeader(http.StatusOK)
	return m.body.Write(b)
}

// lookupLimiter limits requests about keys, each of which may be forwarded to another member.
type lookupLimiter struct {
	pages *pageLimiter

	mu   sync.Mutex
	left int       // guarded by mu
	at   time.Time // guarded by mu: when left was last increased
}

func newLookupLimiter(p *pageLimiter) *lookupLimiter {
	return &lookupLimiter{pages: p, left: lookupBurst}
}

// wrap serves next within the limit.
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
