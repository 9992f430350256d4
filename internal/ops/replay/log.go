package replay

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/suggest"
)

// Log is the part of an access log that a replay needs, ordered by the time of the requests. Equal texts are stored
// once.
type Log struct {
	Lines   int   // all lines, including the skipped ones
	Skipped int   // lines that could not be used
	Why     error // the first error in a skipped line
	Refused int   // requests that were rate limited according to the log: flag RL, or status 429 if it has no flags

	requests []logged
	values   []uint32 // a row per request, an index into texts per column; 0 if absent
	texts    []string
	columns  []string // texts of the sources
	fields   []string // lower-case names of fields in the first lines that belong to no column
}

// logged is one request of a log.
type logged struct {
	at   int64 // Unix nanoseconds
	row  int
	hits uint32
}

// Requests returns the number of requests that can be replayed.
func (l *Log) Requests() int { return len(l.requests) }

// Span returns the time of the first and of the last request.
func (l *Log) Span() (first, last time.Time) {
	if len(l.requests) == 0 {
		return time.Time{}, time.Time{}
	}
	return time.Unix(0, l.requests[0].at).UTC(), time.Unix(0, l.requests[len(l.requests)-1].at).UTC()
}

// Missing returns warnings about sources that no request of the log has, so that their descriptors are never made.
func (l *Log) Missing(templates []DescriptorTemplate) (warnings []string) {
	present := make([]bool, len(l.columns))
	for i, v := range l.values {
		present[i%len(l.columns)] = present[i%len(l.columns)] || v != 0
	}
	for _, d := range templates {
		for i, s := range d.sources {
			at := slices.Index(l.columns, s.text)
			if at < 0 || present[at] {
				continue
			}
			w := fmt.Sprintf("no request has %s, so no descriptor with %s is made: --from %s=%s", s.describe(), d.keys[i],
				d.keys[i], s.text)
			if meant := l.suggest(s); meant != "" {
				w += fmt.Sprintf("; did you mean %s?", meant)
			}
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
	}
	return warnings
}

// suggest returns a source with a field of the log whose name is similar to that of s, or the empty string.
func (l *Log) suggest(s Source) string {
	if s.kind != fromField || s.name == "" {
		return ""
	}
	fields := map[string]string{} // by the last part of their names
	for _, f := range l.fields {
		fields[f[strings.LastIndexByte(f, '.')+1:]] = f
	}
	name := suggest.Nearest(strings.ToLower(s.name), slices.Sorted(maps.Keys(fields)))
	word, _, _ := strings.Cut(s.text, ":")
	switch {
	case name == "":
		return ""
	case word == "header":
		return "header:" + name
	}
	return "field:" + fields[name]
}

// LogReader configures how a log is read. The zero Reader detects the format and the usual fields.
type LogReader struct {
	Format string // of a text log; empty: JSON if a line begins with {, otherwise defaultFormat
	Time   string // field with the time of a request; empty: start_time and other usual names
	Hits   string // field with the hits_addend of a request; empty: every request is one hit
}

// ProgressFunc is called from time to time with the number of bytes and lines read so far.
type ProgressFunc func(bytes int64, lines int)

// Read reads several logs as if they were one. It keeps the fields that the templates need.
func (r LogReader) Read(in []io.Reader, templates []DescriptorTemplate, progress ProgressFunc) (*Log, error) {
	p := r.parser(templates)
	if r.Format != "" {
		var err error
		if p.layout, err = parseFormat(r.Format); err != nil {
			return nil, err
		}
	}
	for _, one := range in {
		if err := p.read(one, progress); err != nil {
			return nil, err
		}
	}
	l := p.log
	if len(l.requests) == 0 {
		if l.Why == nil {
			l.Why = errors.New("the log is empty")
		}
		return nil, fmt.Errorf("the log has no request that can be used: %w", l.Why)
	}
	// Envoy writes a line at the end of a request.
	slices.SortStableFunc(l.requests, func(a, b logged) int { return int(min(1, max(-1, a.at-b.at))) })
	return l, nil
}

// target is a column to which a field belongs. The field with the highest rank sets it.
type target struct{ column, rank int }

// The columns before those of the sources.
const (
	timeColumn = iota
	hitsColumn
	statusColumn
	flagsColumn
	firstSource
)

type parser struct {
	log     *Log
	layout  *layout // nil until the first line
	sources []Source
	targets map[string][]target
	index   map[string]uint32 // of texts
	cells   []cell            // of the line that is being read
	lower   []byte
	bytes   int64
}

type cell struct {
	value []byte
	rank  int // above 0 if the field is present
}

func (r LogReader) parser(templates []DescriptorTemplate) *parser {
	p := &parser{log: &Log{texts: []string{""}}, targets: map[string][]target{}, index: map[string]uint32{}}
	or := func(name string, names ...string) []string {
		if name != "" {
			return []string{strings.ToLower(name)}
		}
		return names
	}
	p.column(timeColumn, or(r.Time, "start_time", "timestamp", "@timestamp", "time", "ts"))
	p.column(hitsColumn, or(r.Hits))
	p.column(statusColumn, []string{"response_code", "status", "status_code", "response_status", "code"})
	p.column(flagsColumn, []string{"response_flags", "response_flags_long", "flags"})
	for _, d := range templates {
		for _, s := range d.sources {
			if s.kind == constant || slices.Contains(p.log.columns, s.text) {
				continue
			}
			p.column(firstSource+len(p.sources), s.fields)
			p.sources, p.log.columns = append(p.sources, s), append(p.log.columns, s.text)
		}
	}
	p.cells = make([]cell, firstSource+len(p.sources))
	return p
}

func (p *parser) column(at int, names []string) {
	for i, n := range names {
		p.targets[n] = append(p.targets[n], target{at, len(names) - i})
	}
}

// maxLine is the maximum length of a line. Envoy accepts at most 8 MiB of headers.
const maxLine = 16 << 20

func (p *parser) read(in io.Reader, progress ProgressFunc) error {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 1<<20), maxLine)
	for s.Scan() {
		line := s.Bytes()
		p.bytes += int64(len(line)) + 1
		if progress != nil && p.log.Lines%8192 == 0 {
			progress(p.bytes, p.log.Lines)
		}
		if line = space(line); len(line) == 0 {
			continue
		}
		p.log.Lines++
		if err := p.line(line); err != nil {
			p.log.Skipped++
			if p.log.Why == nil {
				p.log.Why = fmt.Errorf("line %d: %w", p.log.Lines, err)
			}
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	if progress != nil {
		progress(p.bytes, p.log.Lines)
	}
	return nil
}

func (p *parser) line(line []byte) error {
	clear(p.cells)
	var err error
	switch {
	case p.layout == nil && line[0] == '{':
		err = object(line, p.see)
	case p.layout == nil:
		if p.layout, err = parseFormat(defaultFormat); err == nil {
			err = p.layout.line(line, p.see)
		}
	default:
		err = p.layout.line(line, p.see)
	}
	if err != nil {
		return err
	}
	at, err := parseTime(p.cells[timeColumn].value)
	if err != nil {
		return err
	}
	hits := uint64(1)
	if v := p.cells[hitsColumn].value; len(v) > 0 {
		if hits, err = strconv.ParseUint(string(v), 10, 32); err != nil {
			return fmt.Errorf("hits: want a number, not %q", v)
		}
	}
	p.keep(at, uint32(min(hits, math.MaxUint32)))
	return nil
}

// namedLines is the number of lines whose field names are kept for suggestions.
const namedLines = 20

// see processes one field. Envoy writes - for an absent value.
func (p *parser) see(name, value []byte) {
	absent := len(value) == 0 || len(value) == 1 && value[0] == '-'
	targets, ok := p.targets[string(name)]
	if !ok {
		p.lower = append(p.lower[:0], name...)
		for i, c := range p.lower {
			if 'A' <= c && c <= 'Z' {
				p.lower[i] = c + 'a' - 'A'
			}
		}
		targets = p.targets[string(p.lower)]
		if len(targets) == 0 && p.log.Lines <= namedLines && !slices.Contains(p.log.fields, string(p.lower)) {
			p.log.fields = append(p.log.fields, string(p.lower))
		}
	}
	for _, t := range targets {
		c := &p.cells[t.column]
		switch {
		case t.rank <= c.rank:
		case !absent:
			c.value, c.rank = value, t.rank
		case t.column == flagsColumn: // the field exists without a flag
			c.rank = t.rank
		}
	}
}

func (p *parser) keep(at int64, hits uint32) {
	l := p.log
	flags := p.cells[flagsColumn]
	if hasFlag(flags.value) || flags.rank == 0 && string(p.cells[statusColumn].value) == "429" {
		l.Refused++
	}
	l.requests = append(l.requests, logged{at: at, row: len(l.requests) * len(p.sources), hits: hits})
	for i := range p.sources {
		c := &p.cells[firstSource+i]
		if c.rank == 0 {
			l.values = append(l.values, 0)
			continue
		}
		l.values = append(l.values, p.text(&p.sources[i], c.value))
	}
}

// text returns the index of a value in texts.
func (p *parser) text(s *Source, value []byte) uint32 {
	if s.kind == fromField {
		if n, ok := p.index[string(value)]; ok {
			return n
		}
	}
	made, ok := s.value(string(value))
	if !ok {
		return 0
	}
	n, known := p.index[made]
	if !known {
		n = uint32(len(p.log.texts))
		p.log.texts, p.index[made] = append(p.log.texts, made), n
	}
	return n
}

// hasFlag reports whether the response flags contain RL, or its long name.
func hasFlag(flags []byte) bool {
	for f := range bytes.SplitSeq(flags, []byte(",")) {
		if string(f) == "RL" || string(f) == "RateLimited" {
			return true
		}
	}
	return false
}

// parseTime parses RFC 3339, or Unix time in seconds, milli-, micro- or nanoseconds, whichever yields a time between
// 1973 and 5138.
func parseTime(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, errors.New("the line has no time: set its field with --time")
	}
	if t, err := time.Parse(time.RFC3339Nano, string(b)); err == nil {
		return t.UnixNano(), nil
	}
	n, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(n > 0) || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a time: want RFC 3339 or Unix time", b)
	}
	for n >= 1e11 {
		n /= 1e3
	}
	return int64(n * 1e9), nil
}
