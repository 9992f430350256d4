package h2

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// request is a decoded header block.
type request struct {
	options     *Options
	size        int   // of the header list so far: RFC 9113, 6.5.2
	pseudo      uint8 // pseudo-header fields so far
	regular     bool  // a regular field has been read
	malformed   bool  // RFC 9113, 8.1.1
	badTrailers bool  // the same for trailers
	connection  bool

	httpMethod, path   string
	hosts, authorities int
	grpc               bool   // the content type is gRPC
	contentType        string // the content type otherwise
	encoding           string
	timeout            time.Duration
	timed              bool
	length             int64 // content-length; -1: none
	invalid            string
	values             []string // of Options.Headers
	kept               int      // bytes of values

	handler   Handler
	duplex    *duplexHandler // handler, if it is one
	rejection rejection
}

// rejection answers a call by its headers alone. The zero value means that the call is not rejected.
type rejection struct {
	reset        http2.ErrCode
	http         int
	code         codes.Code
	message      string
	extraFields  string // additional encoded fields
	countsAsCall bool   // the call counts toward Limits.Streams
}

// Pseudo-header fields, RFC 9113, 8.3.1.
const (
	hasMethod = 1 << iota
	hasScheme
	hasPath
	hasAuthority
)

func (r *request) reset() {
	values := r.values
	clear(values)
	*r = request{values: values, length: -1}
}

// add processes a field. It returns false if the list is too large, and must not be called again then.
func (r *request) add(f hpack.HeaderField, o *Options) bool {
	r.options = o
	if r.size += int(f.Size()); r.size > o.Limits.HeaderList {
		return false
	}
	r.malformed = r.malformed || !httpguts.ValidHeaderFieldValue(f.Value)
	if f.Name != "" && f.Name[0] == ':' {
		r.addPseudo(f)
		return true
	}
	r.regular = true
	switch f.Name {
	case "content-type":
		if rest, ok := strings.CutPrefix(f.Value, "application/grpc"); ok &&
			(rest == "" || rest[0] == '+' || rest[0] == ';') {
			r.grpc = true
		} else {
			r.contentType = f.Value
		}
	case "te":
		r.malformed = r.malformed || f.Value != "trailers"
	case "grpc-timeout":
		r.timed = true
		r.setTimeout(f.Value)
	case "grpc-encoding":
		r.encoding = f.Value
	case "content-length":
		n, err := strconv.ParseInt(f.Value, 10, 64)
		r.length = n
		r.malformed = r.malformed || err != nil || n < 0
	case "host":
		r.hosts++
	case "connection", "proxy-connection", "keep-alive", "upgrade", "transfer-encoding":
		r.connection = true
	default:
		r.addOther(f)
	}
	return true
}

// addPseudo processes a field whose name begins with a colon.
func (r *request) addPseudo(f hpack.HeaderField) {
	var bit uint8
	switch f.Name {
	case ":method":
		bit, r.httpMethod = hasMethod, f.Value
	case ":scheme":
		bit = hasScheme
	case ":path":
		bit, r.path = hasPath, f.Value
	case ":authority":
		bit = hasAuthority
		r.authorities++
	}
	// several authorities are rejected in validate
	r.malformed = r.malformed || bit == 0 || r.regular || bit != hasAuthority && r.pseudo&bit != 0
	r.pseudo |= bit
}

// addOther processes a field that HTTP and gRPC do not define.
func (r *request) addOther(f hpack.HeaderField) {
	for i := range r.options.Headers {
		if h := &r.options.Headers[i]; h.Name == f.Name && r.values[i] == "" {
			r.keep(i, f.Value)
		}
	}
	r.malformed = r.malformed || !validName(f.Name)
	if strings.HasSuffix(f.Name, "-bin") {
		if err := checkBinary(f.Value); err != nil {
			r.invalid = fmt.Sprintf("malformed binary metadata %q in header %q: %v", cut(f.Value, maxStatusMessage),
				cut(f.Name, maxStatusMessage), err)
		}
	}
}

// keep keeps the value of Options.Headers[i].
func (r *request) keep(i int, value string) {
	if most := r.options.Headers[i].Max; most > 0 && len(value) > most {
		value = strings.Clone(value[:most+1])
	}
	r.values[i] = value
	r.kept += len(value)
}

// cut returns the first most bytes of s.
func cut(s string, most int) string { return s[:min(len(s), most)] }

// validName reports whether s is a lower-case token.
func validName(s string) bool {
	for i := range len(s) {
		if c := s[i]; 'A' <= c && c <= 'Z' || !httpguts.IsTokenRune(rune(c)) {
			return false
		}
	}
	return s != ""
}

func checkBinary(s string) error {
	enc := base64.RawStdEncoding
	if len(s)%4 == 0 {
		enc = base64.StdEncoding
	}
	_, err := enc.DecodeString(s)
	return err
}

func (r *request) setTimeout(s string) {
	d, err := parseTimeout(s)
	if err != nil {
		r.invalid = fmt.Sprintf("malformed grpc-timeout: %v", err)
	}
	r.timeout = d
}

// parseTimeout parses grpc-timeout: up to 8 digits and a unit.
func parseTimeout(s string) (time.Duration, error) {
	switch {
	case len(s) < 2:
		return 0, fmt.Errorf("transport: timeout string is too short: %q", s)
	case len(s) > 9:
		return 0, fmt.Errorf("transport: timeout string is too long: %q", s)
	}
	var unit time.Duration
	switch s[len(s)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, fmt.Errorf("transport: timeout unit is not recognized: %q", s)
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 64)
	if err != nil {
		return 0, err
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * unit, nil
}

// validate decides whether the call is rejected. The order of the checks and the messages are those of grpc-go.
func (r *request) validate() {
	o := r.options
	r.badTrailers = r.malformed || r.pseudo != 0 || r.connection
	const needed = hasMethod | hasScheme | hasPath
	v := &r.rejection
	switch {
	case o == nil: // no field
		v.reset = http2.ErrCodeProtocol
	case r.size > o.Limits.HeaderList:
		v.reset = http2.ErrCodeFrameSize
	case r.malformed || r.connection || r.pseudo&needed != needed || r.path == "":
		v.reset = http2.ErrCodeProtocol
	case r.authorities > 1 || r.hosts > 1:
		r.refuse(400, codes.Internal, "num values of :authority: %v, num values of host: %v, both must only have 1 value as per HTTP/2 spec", r.authorities, r.hosts)
	case !r.grpc:
		r.refuse(415, codes.InvalidArgument, "invalid gRPC request content-type %q", r.contentType)
	case r.invalid != "":
		r.refuse(400, codes.Internal, "%s", r.invalid)
	case r.authorities+r.hosts == 0:
		r.refuse(400, codes.Internal, "no host or :authority header present")
	case r.httpMethod != "POST":
		r.refuse(405, codes.Internal, "Received a HEADERS frame with :method %q which should be POST", r.httpMethod)
		v.countsAsCall = true
	case r.timed && r.timeout <= 0:
		r.refuse(200, codes.DeadlineExceeded, "context deadline exceeded")
		v.countsAsCall = true
	default:
		v.countsAsCall = true
		r.find()
	}
}

// find looks up the handler of the path.
func (r *request) find() {
	if m, ok := r.options.Methods[r.path]; ok {
		if r.encoding != "" && r.encoding != "identity" && r.encoding != encodingGzip {
			r.refuse(200, codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", r.encoding)
			r.rejection.extraFields = acceptEncodings
		}
		r.handler = m
		r.duplex, _ = m.(*duplexHandler)
		return
	}
	path, ok := strings.CutPrefix(r.path, "/")
	at := strings.LastIndexByte(path, '/')
	if !ok || at < 0 {
		r.refuse(200, codes.Unimplemented, "malformed method name: %q", r.path)
		return
	}
	for known := range r.options.Methods {
		if strings.HasPrefix(known, r.path[:at+2]) && strings.LastIndexByte(known, '/') == at+1 {
			r.refuse(200, codes.Unimplemented, "unknown method %v for service %v", path[at+1:], path[:at])
			return
		}
	}
	r.refuse(200, codes.Unimplemented, "unknown service %v", path[:at])
}

func (r *request) refuse(http int, code codes.Code, format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = cut(s, maxStatusMessage)
		}
	}
	r.rejection.http, r.rejection.code, r.rejection.message = http, code, fmt.Sprintf(format, args...)
}
