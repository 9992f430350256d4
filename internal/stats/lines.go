package stats

import (
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// label is the part of a line before the value, and the part after it.
type label struct{ head, tail string }

// format builds labels in one of the two dialects.
type format struct {
	dog        bool
	tags       []string // in the dialect's syntax, in order
	mogrifiers *mogrifiers
}

func newFormat(o StatsdOptions) (*format, error) {
	m, err := newMogrifiers(o.Mogrifiers)
	if err != nil {
		return nil, err
	}
	f := &format{dog: o.Dog, mogrifiers: m}
	if o.Dog {
		f.tags = slices.Clone(o.DogTags)
	}
	marks := strings.NewReplacer(".", "_", ":", "_", "|", "_")
	for _, k := range slices.Sorted(maps.Keys(o.Tags)) {
		v := marks.Replace(o.Tags[k])
		switch {
		case k == "" || v == "":
		case o.Dog:
			f.tags = append(f.tags, k+":"+v)
		default:
			f.tags = append(f.tags, ".__"+k+"="+v)
		}
	}
	return f, nil
}

// label returns the label of a dotted name. It replaces control characters with underscores: a name may contain parts
// of a request, in which a line break would start a new line.
func (f *format) label(name string) label {
	if !f.dog {
		return label{head: oneLine(name+strings.Join(f.tags, "")) + ":"}
	}
	name, tags := f.mogrifiers.rewrite(name)
	tags = slices.Concat(f.tags, tags)
	if len(tags) == 0 {
		return label{head: oneLine(name) + ":"}
	}
	return label{head: oneLine(name) + ":", tail: oneLine("|#" + strings.Join(tags, ","))}
}

func oneLine(s string) string {
	if strings.IndexFunc(s, isControl) < 0 {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if isControl(rune(c)) {
			b[i] = '_'
		}
	}
	return string(b)
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// batch collects lines into writes. It remembers the counters in each write, so that counters in a failed write are
// sent again.
type batch struct {
	conn     net.Conn
	limit    int // largest write in bytes
	bytes    []byte
	reported []reported
	err      error
}

// reported is a counter whose line ends at offset end.
type reported struct {
	end   int
	at    *sentCounter
	value uint64
}

func (b *batch) reset(conn net.Conn) {
	b.conn, b.bytes, b.reported, b.err = conn, b.bytes[:0], b.reported[:0], nil
}

func (b *batch) counter(at *sentCounter, now uint64) {
	start := b.begin(at.label)
	b.bytes = strconv.AppendUint(b.bytes, now-at.value, 10)
	if b.end(start, "|c", at.label) {
		b.reported = append(b.reported, reported{len(b.bytes), at, now})
	}
}

func (b *batch) gauge(l label, v uint64) {
	start := b.begin(l)
	b.bytes = strconv.AppendUint(b.bytes, v, 10)
	b.end(start, "|g", l)
}

// timer appends a duration in milliseconds. It omits a zero fraction unless the dialect requires one.
func (b *batch) timer(l label, d time.Duration, rate float64, fraction bool) {
	start := b.begin(l)
	ms := float64(d) / float64(time.Millisecond)
	if !fraction && ms == math.Trunc(ms) {
		b.bytes = strconv.AppendUint(b.bytes, uint64(ms), 10)
	} else {
		b.bytes = strconv.AppendFloat(b.bytes, ms, 'f', 6, 64)
	}
	kind := "|ms"
	if rate < 1 {
		kind += "|@" + strconv.FormatFloat(rate, 'f', -1, 64)
	}
	b.end(start, kind, l)
}

func (b *batch) begin(l label) (start int) {
	start = len(b.bytes)
	b.bytes = append(b.bytes, l.head...)
	return start
}

// end completes the line that began at start. If the line does not fit, end writes the lines before it first. It
// reports whether the line is in the batch; after an error no line is.
func (b *batch) end(start int, kind string, l label) bool {
	b.bytes = append(b.bytes, kind...)
	b.bytes = append(b.bytes, l.tail...)
	b.bytes = append(b.bytes, '\n')
	if len(b.bytes) > b.limit && start > 0 && b.err == nil {
		b.write(start)
	}
	if b.err != nil {
		b.bytes = b.bytes[:0]
		return false
	}
	return true
}

func (b *batch) flush() {
	if b.err == nil && len(b.bytes) > 0 {
		b.write(len(b.bytes))
	}
}

// write sends the first n bytes and keeps the rest. A counter counts as sent if its complete line was written.
func (b *batch) write(n int) {
	_ = b.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	out, err := b.conn.Write(b.bytes[:n])
	b.err = err
	for _, t := range b.reported {
		if t.end <= out {
			t.at.value = t.value
		}
	}
	b.reported = b.reported[:0]
	b.bytes = b.bytes[:copy(b.bytes, b.bytes[n:])]
}
