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

// label is what stands before and after the value in a line.
type label struct{ head, tail string }

// format makes labels in one of the two dialects.
type format struct {
	dog        bool
	tags       []string // in the dialect, in order
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

// label is the line's frame of a dotted name. Control characters become underscores: a name may hold parts of a request,
// and a line break would begin a line of its own.
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

// batch gathers lines into writes and remembers which counters a write tells of, so that what did not go out goes out
// the next time.
type batch struct {
	conn     net.Conn
	limit    int // bytes of a write
	bytes    []byte
	reported []reported
	err      error
}

// reported is a counter whose line ends at end.
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

// timer writes milliseconds: without a fraction where there is none, unless the dialect always has one.
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

// end completes the line that began at start. When it does not fit, the lines before it are written first. It says
// whether the line is in the batch: after a fault none is.
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

// write sends the first n bytes and keeps the rest. A counter whose line went out whole is known to the server.
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
