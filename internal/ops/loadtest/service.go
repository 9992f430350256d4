package loadtest

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"
)

// LoadTarget is how a server is called and its answers are read.
type LoadTarget struct {
	Headers []hpack.HeaderField // of every call, :authority apart; pseudo headers first
	Framed  bool                // messages have gRPC's prefix of five bytes
	// Read reports whether a response refuses the call. It returns an error if the response is malformed. It must not keep the Reply.
	Read func(r *Reply) (over bool, err error)
}

// Reply is one answer as it arrived.
type Reply struct {
	Status string // of HTTP
	Code   string // grpc-status; empty: none
	Why    string // grpc-message
	Body   []byte // with Service.Framed: without the prefix
}

// GRPC is the service that answers a method of gRPC, as in "/package.Service/Method". Each call has a timeout of one second: a call that
// a busy machine delays must be answered, not given up, or it would look cheaper. The headers are those that Envoy sends.
func GRPC(method string, over func(message []byte) (bool, error)) LoadTarget {
	return LoadTarget{
		Framed: true,
		Headers: []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":path", Value: method}, {Name: ":scheme", Value: "http"},
			{Name: "te", Value: "trailers"}, {Name: "grpc-timeout", Value: "1000m"}, {Name: "content-type", Value: "application/grpc"},
			{Name: "x-envoy-internal", Value: "true"}, {Name: "x-forwarded-for", Value: "127.0.0.1"},
		},
		Read: func(r *Reply) (bool, error) {
			if r.Code != "0" {
				return false, fmt.Errorf("HTTP status %q, gRPC status %q: %s", r.Status, r.Code, r.Why)
			}
			return over(r.Body)
		},
	}
}

// RLS is Envoy's rate limit service.
func RLS() LoadTarget {
	return GRPC("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", ReadRLS)
}

var errResponse = errors.New("the answer is no RateLimitResponse")

// ReadRLS reports whether a RateLimitResponse refuses the call. A response without a code is an error.
func ReadRLS(message []byte) (over bool, err error) {
	const ok, overLimit = 1, 2
	code, err := field(message, 1)
	switch {
	case err != nil:
		return false, err
	case code != ok && code != overLimit:
		return false, fmt.Errorf("code %d in the answer", code)
	}
	return code == overLimit, nil
}

// field is the value of a varint field of an encoded message; 0 when it is absent.
func field(b []byte, want protowire.Number) (v uint64, err error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, errResponse
		}
		b = b[n:]
		if num == want && typ == protowire.VarintType {
			v, n = protowire.ConsumeVarint(b)
		} else {
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return 0, errResponse
		}
		b = b[n:]
	}
	return v, nil
}

// HTTP is a page behind a proxy that may be limited: any 2xx lets a call pass, 429 refuses it.
func HTTP(path string) LoadTarget {
	return LoadTarget{
		Headers: []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":path", Value: path}, {Name: ":scheme", Value: "http"}},
		Read: func(r *Reply) (bool, error) {
			if r.Status == "429" {
				return true, nil
			}
			if !strings.HasPrefix(r.Status, "2") {
				return false, fmt.Errorf("HTTP status %s", r.Status)
			}
			return false, nil
		},
	}
}
