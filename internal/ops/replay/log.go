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

// Log is what a replay needs of an access log, in the order of the requests' times. Texts are kept once.
type Log struct {
	Lines   int   // read, with those that could not be used
	Skipped int   // of them
	Why     error // the first reason for one
	Refused int   // requests that the log says were rate limited: flag RL, or status 429 where it has no flags

	requests []logged
	values   []uint32 // of each request, one a column: an index of texts; 0: not there
	texts    []string
	columns  []string // texts of the sources
	fields   []string // names, in lower case, of fields of the first lines that no column takes
}

// logged is one request of a log.
type logged struct {
	at   int64 // Unix nanoseconds
	row  int
	hits uint32
}

// Requests is how many can be replayed.
func (l *Log) Requests() int { return len(l.requests) }

// Span is the time of the first and of the last request.
func (l *Log) Span() (first, last time.Time) {
	if len(l.requests) == 0 {
		return time.Time{}, time.Time{}
	}
	return time.Unix(0, l.requests[0].at).UTC(), time.Unix(0, l.requests[len(l.requests)-1].at).UTC()
}

// Missing names the sources of the questions that no request of the log has, so that nothing is asked about with them.
func (l *Log) Missing(questions []DescriptorTemplate) (warnings []string) {
	there := make([]bool, len(l.columns))
	for i, v := range l.values {
		there[i%len(l.columns)] = there[i%len(l.columns)] || v != 0
	}
	for _, q := range questions {
		for i, s := range q.sources {
			at := slices.Index(l.columns, s.text)
			if at < 0 || there[at] {
				continue
			}
			w := fmt.Sprintf("no request has %s, so no rule with %s is asked about: --from %s=%s", s.what(), q.keys[i], q.keys[i], s.text)
			if meant := l.meant(s); meant != "" {
				w += fmt.Sprintf("; did you mean %s?", meant)
			}
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
	}
	return warnings
}

// meant is a source of a field that the log has and that is written much like the one of s; empty without one.
func (l *Log) meant(s Source) string {
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

// Reader says how a log is read. The zero Reader guesses all it can.
type Reader struct {
	Format string // of a text log; empty: JSON lines where a line begins with {, else DefaultFormat
	Time   string // field of a request's time; empty: start_time and what else is usual
	Hits   string // field of a request's hits_addend; empty: every request is one hit
}

// ProgressFunc is told now and then how many bytes and lines have been read.
type ProgressFunc func(bytes int64, lines int)

// Read reads logs one after the other, as if they were one, for what the questions ask about.
func (r Reader) Read(in []io.Reader, questions []DescriptorTemplate, progress ProgressFunc) (*Log, error) {
	p := r.parser(questions)
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
			l.Why = errors.New("there is no line")
		}
		return nil, fmt.Errorf("no request could be read: %w", l.Why)
	}
	// Envoy writes a request's line when it ends.
	slices.SortStableFunc(l.requests, func(a, b logged) int { return int(min(1, max(-1, a.at-b.at))) })
	return l, nil
}

// target is a column that a field of the log may fill. The least rank of those that are there does.
type target struct{ column, rank int }

// The columns before those of sources.
const (
	timeColumn = iota
	hitsColumn
	statusColumn
	flagsColumn
	firstSource
)

type parser struct {
	log     *Log
	layout  *layout // nil: not decided yet
	sources []Source
	targets map[string][]target
	index   map[string]uint32 // of texts
	cells   []cell            // of the line that is being read
	lower   []byte
	bytes   int64
}

type cell struct {
	value []byte
	rank  int // above 0 when it is there
}

func (r Reader) parser(questions []DescriptorTemplate) *parser {
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
	for _, q := range questions {
		for _, s := range q.sources {
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

// maxLine bounds a line: Envoy takes at most 8 MiB of headers.
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
		if p.layout, err = parseFormat(DefaultFormat); err == nil {
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

// namedLines is the number of lines whose fields are remembered by name, to suggest one in place of a misspelt one.
const namedLines = 20

// see takes one field. Envoy writes - for what is not there.
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
		case t.column == flagsColumn: // no flags are an answer, too
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

// text is the index of a value.
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

// hasFlag finds RL among response flags, or the long name of it.
func hasFlag(flags []byte) bool {
	for f := range bytes.SplitSeq(flags, []byte(",")) {
		if string(f) == "RL" || string(f) == "RateLimited" {
			return true
		}
	}
	return false
}

// parseTime reads RFC 3339, or Unix time as a number of seconds, milli-, micro- or nanoseconds, whichever makes it a time
// between 1973 and 5138.
func parseTime(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, errors.New("the line has no time: name its field with --time")
	}
	if t, err := time.Parse(time.RFC3339Nano, string(b)); err == nil {
		return t.UnixNano(), nil
	}
	n, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(n > 0) || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is no time: want RFC 3339 or Unix time", b)
	}
	for n >= 1e11 {
		n /= 1e3
	}
	return int64(n * 1e9), nil
}
