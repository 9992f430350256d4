package h2

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
)

// serveOracle runs x/net's server.
func serveOracle(nc net.Conn) {
	s := &http2.Server{ //nolint:staticcheck // net/http has no function that serves one connection
		MaxConcurrentStreams: oracleStreams, MaxUploadBufferPerStream: streamWindow, MaxUploadBufferPerConnection: connWindow, MaxReadFrameSize: minFrame,
	}
	s.ServeConn(nc, &http2.ServeConnOpts{Handler: http.HandlerFunc(oracleCall), BaseConfig: &http.Server{ErrorLog: log.New(io.Discard, "", 0)}}) //nolint:staticcheck // the same
}

// oracleCall answers a call of methods() by gRPC's rules.
func oracleCall(w http.ResponseWriter, r *http.Request) {
	w.Header()["Date"] = nil
	w.Header().Set("Content-Type", "application/grpc")
	fail := func(http, status int) {
		w.Header().Set("Grpc-Status", strconv.Itoa(status))
		w.WriteHeader(http)
	}
	switch n := r.Header.Get("Content-Length"); {
	case n != "" && n != "0" && r.ContentLength == 0: // x/net does not compare them where there is no body
		panic(http.ErrAbortHandler)
	case r.Header.Get("Content-Type") != "application/grpc":
		fail(415, 3)
		return
	case r.Host == "":
		fail(400, 13)
		return
	case r.Method != http.MethodPost:
		fail(405, 13)
		return
	case methods()[r.URL.Path] == nil, !slices.Contains([]string{"", "identity", "gzip"}, r.Header.Get("Grpc-Encoding")):
		fail(200, 12)
		return
	}
	if r.URL.Path == both {
		oracleBoth(w, r)
		return
	}
	message, status := oracleMessage(r.Body, r.Header.Get("Grpc-Encoding"))
	if status != 0 {
		fail(200, status)
		return
	}
	out, status := oracleAnswer(r, string(message))
	if status != 0 {
		fail(200, status)
		return
	}
	w.Header().Set("Trailer", "Grpc-Status")
	w.WriteHeader(http.StatusOK)
	for _, m := range out {
		_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...))
	}
	w.Header().Set("Grpc-Status", "0")
}

// oracleBoth echoes each message of a duplex call when it comes.
func oracleBoth(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "Grpc-Status")
	for {
		var head [prefix]byte
		n, err := io.ReadFull(r.Body, head[:])
		size := binary.BigEndian.Uint32(head[1:])
		status := 0
		switch {
		case n == 0 && err == io.EOF:
			w.Header().Set("Grpc-Status", "0")
			return
		case errors.Is(err, io.ErrUnexpectedEOF):
			status = 13
		case err != nil:
			panic(http.ErrAbortHandler)
		case head[0] == 1:
			status = 12
		case head[0] != 0:
			status = 13
		case size > maxBoth:
			status = 8
		}
		message := make([]byte, min(size, maxBoth))
		if status == 0 {
			switch _, err := io.ReadFull(r.Body, message); {
			case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
				status = 13
			case err != nil:
				panic(http.ErrAbortHandler)
			}
		}
		if status != 0 {
			w.Header().Set("Grpc-Status", strconv.Itoa(status))
			return
		}
		_, _ = w.Write(append(head[:], message...))
		_ = http.NewResponseController(w).Flush()
	}
}

// oracleMessage reads the one message of a call, or returns the status that explains why there is none.
func oracleMessage(body io.Reader, encoding string) ([]byte, int) {
	var got []byte
	for b := make([]byte, 1<<14); ; {
		n, err := body.Read(b)
		got = append(got, b[:n]...)
		if len(got) >= prefix {
			size := int64(binary.BigEndian.Uint32(got[1:]))
			if size > 16<<20 {
				return nil, 8
			}
			if int64(len(got)) > prefix+size {
				return nil, 13
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	switch {
	case len(got) < prefix, len(got)-prefix < int(binary.BigEndian.Uint32(got[1:])), got[0] > 1, got[0] == 1 && encoding != "gzip":
		return nil, 13
	case got[0] == 0:
		return got[prefix:], 0
	}
	return oracleContent(got[prefix:])
}

// oracleContent decompresses a message.
func oracleContent(b []byte) ([]byte, int) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, 13
	}
	out, err := io.ReadAll(io.LimitReader(z, 16<<20+1))
	switch {
	case err != nil:
		return nil, 13
	case len(out) > 16<<20:
		return nil, 8
	}
	return out, 0
}

// oracleAnswer gives the responses of methods().
func oracleAnswer(r *http.Request, in string) (out []string, status int) {
	switch r.URL.Path {
	case echo, late:
		return []string{in}, 0
	case gives:
		<-r.Context().Done()
		return nil, 1
	case fails:
		return nil, 9
	case count:
		for i := range len(in) {
			out = append(out, strconv.Itoa(i))
		}
		return out, 0
	case size:
		return []string{strconv.Itoa(len(in))}, 0
	}
	var n int
	fmt.Sscan(in, &n)
	return []string{strings.Repeat("x", max(0, n))}, 0
}
