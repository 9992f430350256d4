package h2

import (
	"strings"

	"golang.org/x/net/http2"
)

// rows are the rules, from RFC 9113 unless another document is named.
func rows() []row {
	return append(append(append(frameRows(), streamRows()...), windowRows()...), append(headerRows(), grpcRows()...)...)
}

const (
	protocol   = http2.ErrCodeProtocol
	frameSize  = http2.ErrCodeFrameSize
	closed     = http2.ErrCodeStreamClosed
	flow       = http2.ErrCodeFlowControl
	compressed = http2.ErrCodeCompression
)

func frameRows() []row {
	zero := func(n int) []byte { return make([]byte, n) }
	return []row{
		{"4.1: a frame of a type that is unknown is ignored", func(k *talk) { k.raw(0xf0, 0xff, 0, zero(10)); k.raw(0xf0, 0, 1, nil); k.call(1) }, answered(1)},
		{"4.1: flags that mean nothing and the reserved bit are ignored", func(k *talk) {
			k.raw(http2.FramePing, 0x16, 1<<31, []byte("flags\x00\x00\x00"))
		}, []string{"PING ack=true flags"}},
		{"4.2: a frame of 16384 bytes is taken", func(k *talk) {
			k.open(1, false, append(fields{{":path", size}}, without(":path")...))
			_ = k.WriteData(1, true, append([]byte{0, 0, 0, 0x3f, 0xfb}, zero(16379)...))
		}, []string{"HEADERS 1 status=200", `DATA 1 "\x00\x00\x00\x00\x0516379"`, "HEADERS 1 status=0 END"}},
		{"4.2: a larger one is an error", func(k *talk) { k.raw(http2.FrameData, 0, 1, zero(16385)) }, goAway(frameSize)},
		{"4.2: a larger one of headers, too", func(k *talk) { k.raw(http2.FrameHeaders, 4, 1, zero(16385)) }, goAway(frameSize)},
		{"5.5: a frame of an unknown type inside a header block is an error", func(k *talk) {
			k.raw(http2.FrameHeaders, 0, 1, k.pack(good))
			k.raw(0xf0, 0, 0, nil)
		}, goAway(protocol)},
		{"6.1: DATA of stream 0", func(k *talk) { k.raw(http2.FrameData, 0, 0, zero(4)) }, goAway(protocol)},
		{"6.1: DATA whose padding is longer than the rest", func(k *talk) {
			k.open(1, false, good)
			k.raw(http2.FrameData, http2.FlagDataPadded, 1, []byte{6, 0, 0, 0, 0, 0})
		}, goAway(protocol)},
		{"6.1: padded DATA of nothing", func(k *talk) {
			k.open(1, false, good)
			k.raw(http2.FrameData, http2.FlagDataPadded, 1, nil)
		}, goAway(frameSize)},
		{"6.1: padding is no data", func(k *talk) {
			k.open(1, false, good)
			k.raw(http2.FrameData, http2.FlagDataPadded|http2.FlagDataEndStream, 1, append([]byte{3}, "\x00\x00\x00\x00\x02hi\x00\x00\x00"...))
		}, answered(1)},
		{"6.2: HEADERS of stream 0", func(k *talk) { k.raw(http2.FrameHeaders, 4, 0, k.pack(good)) }, goAway(protocol)},
		{"6.2: HEADERS whose padding is longer than the rest", func(k *talk) { k.raw(http2.FrameHeaders, 4|8, 1, []byte{200, 0x83}) }, goAway(protocol)},
		{"6.2: HEADERS too short for its priority", func(k *talk) { k.raw(http2.FrameHeaders, 4|32, 1, []byte{0, 0}) }, goAway(frameSize)},
		{"6.2: padding and priority are no headers", func(k *talk) {
			p := append([]byte{2, 0, 0, 0, 0, 16}, k.pack(good)...)
			k.raw(http2.FrameHeaders, 4|8|32, 1, append(p, 0, 0))
			k.message(1, true, "hi")
		}, answered(1)},
		{"6.2: a header block is followed by its CONTINUATION alone", func(k *talk) {
			k.raw(http2.FrameHeaders, 0, 1, k.pack(good))
			k.raw(http2.FramePing, 0, 0, zero(8))
		}, goAway(protocol)},
		{"6.2: nor by that of another stream", func(k *talk) {
			k.raw(http2.FrameHeaders, 0, 1, k.pack(good))
			k.raw(http2.FrameContinuation, 4, 3, nil)
		}, goAway(protocol)},
		{"6.3: PRIORITY of stream 0", func(k *talk) { k.raw(http2.FramePriority, 0, 0, zero(5)) }, goAway(protocol)},
		{"6.3: PRIORITY of another length ends the stream", func(k *talk) {
			k.open(1, false, good)
			k.raw(http2.FramePriority, 0, 1, zero(4))
		}, goAway(frameSize)},
		{"6.3: PRIORITY comes at any time", func(k *talk) {
			k.raw(http2.FramePriority, 0, 3, zero(5))
			k.call(1)
			k.raw(http2.FramePriority, 0, 1, zero(5))
		}, answered(1)},
		{"6.4: RST_STREAM of stream 0", func(k *talk) { k.raw(http2.FrameRSTStream, 0, 0, zero(4)) }, goAway(protocol)},
		{"6.4: RST_STREAM of an idle stream", func(k *talk) { k.raw(http2.FrameRSTStream, 0, 1, zero(4)) }, goAway(protocol)},
		{"6.4: RST_STREAM of another length", func(k *talk) { k.open(1, false, good); k.raw(http2.FrameRSTStream, 0, 1, zero(3)) }, goAway(frameSize)},
		{"6.5: SETTINGS of a stream", func(k *talk) { k.raw(http2.FrameSettings, 0, 1, zero(6)) }, goAway(protocol)},
		{"6.5: SETTINGS that is no multiple of 6", func(k *talk) { k.raw(http2.FrameSettings, 0, 0, zero(7)) }, goAway(frameSize)},
		{"6.5: an acknowledgement with content", func(k *talk) { k.raw(http2.FrameSettings, 1, 0, zero(6)) }, goAway(frameSize)},
		{"6.5.2: ENABLE_PUSH is 0 or 1", func(k *talk) { _ = k.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2}) }, goAway(protocol)},
		{"6.5.2: a window over 2^31-1", func(k *talk) { _ = k.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}) }, goAway(flow)},
		{"6.5.2: frames of less than 16384", func(k *talk) { _ = k.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16383}) }, goAway(protocol)},
		{"6.5.2: frames of more than 2^24-1", func(k *talk) { _ = k.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 24}) }, goAway(protocol)},
		{"6.5.2: a setting that is unknown is ignored", func(k *talk) { _ = k.WriteSettings(http2.Setting{ID: 0xff, Val: 1}); k.call(1) }, answered(1)},
		{"6.6: PUSH_PROMISE", func(k *talk) { k.raw(http2.FramePushPromise, 4, 1, zero(8)) }, goAway(protocol)},
		{"6.7: PING is answered with its content", func(k *talk) { k.raw(http2.FramePing, 0, 0, []byte("content\x00")) }, []string{"PING ack=true content"}},
		{"6.7: an answer to a PING is not answered", func(k *talk) { k.raw(http2.FramePing, 1, 0, zero(8)) }, silent},
		{"6.7: PING of a stream", func(k *talk) { k.raw(http2.FramePing, 0, 1, zero(8)) }, goAway(protocol)},
		{"6.7: PING of another length", func(k *talk) { k.raw(http2.FramePing, 0, 0, zero(6)) }, goAway(frameSize)},
		{"6.8: GOAWAY of a stream", func(k *talk) { k.raw(http2.FrameGoAway, 0, 1, zero(8)) }, goAway(protocol)},
		{"6.8: GOAWAY too short", func(k *talk) { k.raw(http2.FrameGoAway, 0, 0, zero(4)) }, goAway(frameSize)},
		{"6.8: after GOAWAY what is open is answered", func(k *talk) {
			k.open(1, false, good)
			_ = k.WriteGoAway(0, 0, []byte("bye"))
			k.message(1, true, "hi")
		}, answered(1)},
		{"6.10: a header block in three frames", func(k *talk) {
			b := k.pack(good)
			k.raw(http2.FrameHeaders, 0, 1, b[:3])
			k.raw(http2.FrameContinuation, 0, 1, b[3:5])
			k.raw(http2.FrameContinuation, 4, 1, b[5:])
			k.message(1, true, "hi")
		}, answered(1)},
		{"6.10: CONTINUATION of nothing", func(k *talk) { k.raw(http2.FrameContinuation, 4, 1, nil) }, goAway(protocol)},
		{"6.10: CONTINUATION after the end of a block", func(k *talk) {
			k.open(1, false, good)
			k.raw(http2.FrameContinuation, 4, 1, k.pack(good))
		}, goAway(protocol)},
		{"6.10: CONTINUATION of stream 0", func(k *talk) {
			k.raw(http2.FrameHeaders, 0, 1, k.pack(good))
			k.raw(http2.FrameContinuation, 4, 0, nil)
		}, goAway(protocol)},
		{"7: an error code that is unknown", func(k *talk) {
			k.open(1, false, good)
			k.raw(http2.FrameRSTStream, 0, 1, []byte{0, 0, 0, 0xff})
			k.call(3)
		}, answered(3)},
	}
}

func streamRows() []row {
	return []row{
		{"5.1: DATA of an idle stream", func(k *talk) { k.message(1, true, "hi") }, goAway(protocol)},
		{"5.1: WINDOW_UPDATE of an idle stream", func(k *talk) { _ = k.WriteWindowUpdate(1, 100) }, goAway(protocol)},
		{"5.1: DATA after END_STREAM", func(k *talk) { k.call(1); k.message(1, true, "hi") }, join(answered(1), rst(1, closed))},
		{"5.1: the same while the call is served", func(k *talk) {
			k.open(1, false, append(fields{{":path", gives}}, without(":path")...))
			k.message(1, true, "hi")
			k.message(1, true, "hi")
		}, rst(1, closed)},
		{"5.1: HEADERS after END_STREAM", func(k *talk) { k.call(1); k.open(1, true, good) }, join(answered(1), goAway(closed))},
		{"5.1: DATA after RST_STREAM", func(k *talk) {
			k.open(1, false, good)
			_ = k.WriteRSTStream(1, http2.ErrCodeCancel)
			k.message(1, true, "hi")
		}, rst(1, closed)},
		{"5.1: WINDOW_UPDATE and RST_STREAM after the end are let pass", func(k *talk) {
			k.call(1)
			_ = k.WriteWindowUpdate(1, 100)
			_ = k.WriteRSTStream(1, http2.ErrCodeCancel)
		}, answered(1)},
		{"5.1: what comes after a RST_STREAM of this side is ignored", func(k *talk) {
			k.open(1, false, with([2]string{"X", "upper"}))
			k.message(1, false, "hi")
			_ = k.WriteWindowUpdate(1, 1)
			_ = k.WriteWindowUpdate(1, 0)
			k.open(1, true, fields{{"trailer", "x"}})
			k.call(3)
		}, join(rst(1, protocol), answered(3))},
		{"5.1.1: a stream of an even number", func(k *talk) { k.open(2, true, good) }, goAway(protocol)},
		{"5.1.1: a stream of a lower number than the last", func(k *talk) { k.call(5); k.call(3) }, join(answered(5), goAway(protocol))},
		{"5.1.2: more streams than are allowed are refused, and the others are not", func(k *talk) {
			for id := uint32(1); id <= 23; id += 2 {
				k.open(id, false, good)
			}
			k.message(1, true, "hi")
			k.call(25)
		}, join(rst(21, http2.ErrCodeRefusedStream), rst(23, http2.ErrCodeRefusedStream), answered(1), answered(25))},
		{"RFC 7540, 5.3.1: HEADERS that depends on itself", func(k *talk) {
			_ = k.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: k.pack(good), EndHeaders: true, Priority: http2.PriorityParam{StreamDep: 1}})
		}, rst(1, protocol)},
		{"RFC 7540, 5.3.1: PRIORITY that depends on itself", func(k *talk) { _ = k.WritePriority(3, http2.PriorityParam{StreamDep: 3}) }, rst(3, protocol)},
		{"5.4.1: after an error GOAWAY is written, and the connection ends", func(k *talk) { k.call(1); k.raw(http2.FramePing, 0, 0, nil) }, join(answered(1), goAway(frameSize))},
		{"8.1: trailers end a call", func(k *talk) {
			k.open(1, false, good)
			k.message(1, false, "hi")
			k.open(1, true, fields{{"x-trailer", "1"}})
		}, answered(1)},
		{"8.1: trailers without END_STREAM", func(k *talk) {
			k.open(1, false, good)
			k.message(1, false, "hi")
			k.open(1, false, fields{{"x-trailer", "1"}})
		}, rst(1, protocol)},
		{"8.1: pseudo-header fields in trailers", func(k *talk) {
			k.open(1, false, good)
			k.message(1, false, "hi")
			k.open(1, true, fields{{":method", "POST"}})
		}, rst(1, protocol)},
		{"8.1.1: content-length is that of the data", func(k *talk) {
			k.open(1, false, with([2]string{"content-length", "7"}))
			k.message(1, true, "hi")
		}, answered(1)},
		{"8.1.1: content-length is less", func(k *talk) {
			k.open(1, false, with([2]string{"content-length", "1"}))
			k.message(1, true, "hi")
		}, rst(1, protocol)},
		{"8.1.1: content-length is that of several DATA", func(k *talk) {
			k.open(1, false, with([2]string{"content-length", "8"}))
			_ = k.WriteData(1, false, []byte("\x00\x00\x00"))
			_ = k.WriteData(1, true, []byte("\x00\x02hi"))
		}, rst(1, protocol)},
	}
}

func windowRows() []row {
	first := func(n uint32) http2.Setting { return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n} }
	piece := func(s string) string { return `DATA 1 "` + s + `"` }
	const end = "HEADERS 1 status=0 END"
	return []row{
		{"6.9: WINDOW_UPDATE of a connection by 0", func(k *talk) { _ = k.WriteWindowUpdate(0, 0) }, goAway(protocol)},
		{"6.9: WINDOW_UPDATE of a stream by 0", func(k *talk) { k.open(1, false, good); _ = k.WriteWindowUpdate(1, 0) }, rst(1, protocol)},
		{"6.9: WINDOW_UPDATE of another length", func(k *talk) { k.raw(http2.FrameWindowUpdate, 0, 0, make([]byte, 3)) }, goAway(frameSize)},
		{"6.9.1: a connection's window over 2^31-1", func(k *talk) {
			_ = k.WriteWindowUpdate(0, 1<<31-1)
			_ = k.WriteWindowUpdate(0, 1<<31-1)
		}, goAway(flow)},
		{"6.9.1: a stream's window over 2^31-1", func(k *talk) {
			k.open(1, false, good)
			_ = k.WriteWindowUpdate(1, 1<<31-1)
			_ = k.WriteWindowUpdate(1, 1<<31-1)
		}, rst(1, flow)},
		{"6.9.1: no more DATA is sent than there is window, and the rest when there is", func(k *talk) {
			_ = k.WriteSettings(first(1))
			k.call(1)
			_ = k.WriteWindowUpdate(1, 2)
			_ = k.WriteWindowUpdate(1, 100)
		}, []string{"HEADERS 1 status=200", piece(`\x00`), piece(`\x00\x00`), piece(`\x00\x02hi`), end}},
		{"6.9.2: the window of streams that are open follows the settings", func(k *talk) {
			_ = k.WriteSettings(first(0))
			k.call(1)
			_ = k.WriteSettings(first(3))
			_ = k.WriteSettings(first(100))
		}, []string{"HEADERS 1 status=200", piece(`\x00\x00\x00`), piece(`\x00\x02hi`), end}},
		{"6.9.2: and may become negative", func(k *talk) {
			_ = k.WriteSettings(first(3))
			k.call(1)
			_ = k.WriteSettings(first(1)) // -2
			_ = k.WriteWindowUpdate(1, 2) // 0
			_ = k.WriteWindowUpdate(1, 1)
			_ = k.WriteWindowUpdate(1, 100)
		}, []string{"HEADERS 1 status=200", piece(`\x00\x00\x00`), piece(`\x00`), piece(`\x02hi`), end}},
		{"6.9.2: an overflow by settings", func(k *talk) {
			k.open(1, false, good)
			_ = k.WriteWindowUpdate(1, 1<<31-1-65535)
			_ = k.WriteSettings(first(65536))
		}, goAway(flow)},
		{"6.9.2: a connection's window is not that of the settings", func(k *talk) { _ = k.WriteSettings(first(1 << 20)); k.call(1) }, answered(1)},
	}
}

func headerRows() []row {
	refused := rst(1, protocol)
	open := func(list fields) func(*talk) { return func(k *talk) { k.open(1, true, list) } }
	raw := func(block string) func(*talk) {
		return func(k *talk) { k.raw(http2.FrameHeaders, 5, 1, []byte(block)) }
	}
	rows := []row{
		{"4.3: a block that cannot be unpacked", raw("\x00\x85\xf2\xb2\x4a"), goAway(compressed)},
		{"8.2.2: te may be trailers alone", open(without("te", [2]string{"te", "gzip"})), refused},
		{"8.3: a pseudo-header field after another field", open(append(fields{{"x", "1"}}, good...)), refused},
		{"8.3: of a response", open(append(fields{{":status", "200"}}, good...)), refused},
		{"8.3: that is unknown", open(append(fields{{":x", "200"}}, good...)), refused},
		{"8.3.1: an empty path", open(append(fields{{":path", ""}}, without(":path")...)), refused},
		{"RFC 7541, 2.3.3: a place that is not in the table", raw("\xff\x00"), goAway(compressed)},
		{"RFC 7541, 4.2: a table's size after a field", raw("\x82\x40\x01a\x01b\x20"), goAway(compressed)},
		{"RFC 7541, 5.1: an integer that is too large", raw("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), goAway(compressed)},
		{"RFC 7541, 5.2: a Huffman code with padding of 8 bits", raw("\x00\x85\xf2\xb2\x4a\x84\xff\x83\xfb\xd1\x84\xff"), goAway(compressed)},
		{"RFC 7541, 5.2: a Huffman code with padding by zeros", raw("\x00\x83\xea\xe7\x50\x81\x00"), goAway(compressed)},
		{"RFC 7541, 6.1: place 0", raw("\x80"), goAway(compressed)},
		{"RFC 7541, 6.3: a table larger than was allowed", raw("\x3f\xe2\x1f"), goAway(compressed)},
		{"RFC 7541, 4.3: a table may be made empty", func(k *talk) {
			k.raw(http2.FrameHeaders, 4, 1, append([]byte{0x20}, k.pack(good)...))
			k.message(1, true, "hi")
		}, answered(1)},
		{"RFC 7541, 4.2: a smaller table of the client is acknowledged in the next block", func(k *talk) {
			k.call(1)
			_ = k.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
			k.dec.SetAllowedMaxDynamicTableSize(0)
			k.call(3)
			k.call(5)
		}, join(answered(1), []string{"HEADERS 3 table=0 status=200"}, answered(3)[1:], answered(5))},
		{"RFC 7541, 2.3: the table is unchanged, whatever happens to the stream", func(k *talk) {
			k.open(1, true, with([2]string{"UPPER", "x"}, [2]string{"x-a", "1"}))
			k.open(3, true, with([2]string{"te", "bad"}, [2]string{"x-b", "2"}))
			k.call(5)
			k.open(7, false, with([2]string{"x-a", "1"}, [2]string{"x-b", "2"}))
			k.message(7, true, "hi")
		}, join(rst(1, protocol), rst(3, protocol), answered(5), answered(7))},
	}
	for _, name := range []string{":method", ":scheme", ":path"} {
		rows = append(rows,
			row{"8.3.1: no " + name, open(without(name)), refused},
			row{"8.3.1: two of " + name, open(append(fields{{name, "x"}}, good...)), refused})
	}
	for _, name := range []string{"X-Upper", "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "", "a b", "a:b", "a\x00", "ä"} {
		rows = append(rows, row{"8.2: a field " + name, open(with([2]string{name, "x"})), refused})
	}
	for _, value := range []string{"a\x00", "a\nb", "a\r"} {
		rows = append(rows, row{"8.2.1: a value " + value, open(with([2]string{"x", value})), refused})
	}
	for _, value := range []string{"-1", "x", "", "1, 1"} {
		rows = append(rows, row{"8.1.1: content-length " + value, open(with([2]string{"content-length", value})), refused})
	}
	return rows
}

// grpcRows are gRPC's own rules, PROTOCOL-HTTP2.md, in the wording of grpc-go.
func grpcRows() []row {
	open := func(list fields) func(*talk) { return func(k *talk) { k.open(1, true, list) } }
	say := func(parts ...string) func(*talk) {
		return func(k *talk) {
			k.open(1, false, good)
			for i, p := range parts {
				_ = k.WriteData(1, i == len(parts)-1, []byte(p))
			}
		}
	}
	fail := func(http, status int, message string) []string { return []string{failed(1, http, status, message)} }
	hi := string(gzipped([]byte("hi")))
	gzip := func(flag, message string) func(*talk) {
		return func(k *talk) {
			k.open(1, false, with([2]string{"grpc-encoding", "gzip"}))
			b := append([]byte(flag), compressedFrame([]byte(message))[1:]...)
			for ; len(b) > minFrame; b = b[minFrame:] {
				_ = k.WriteData(1, false, b[:minFrame])
			}
			_ = k.WriteData(1, true, b)
		}
	}
	rows := []row{
		{"a message in many parts", say("\x00", "\x00\x00", "\x00\x02", "h", "", "i", ""), answered(1)},
		{"no message", say(""), fail(200, 13, "cardinality violation: received no request message from non-client-streaming RPC")},
		{"no message and no DATA", open(good), fail(200, 13, "cardinality violation: received no request message from non-client-streaming RPC")},
		{"half a head", say("\x00\x00"), fail(200, 13, "unexpected EOF")},
		{"half a message", say("\x00\x00\x00\x00\x02h"), fail(200, 13, "unexpected EOF")},
		{"two messages", func(k *talk) { say("\x00\x00\x00\x00\x02hi\x00\x00\x00\x00\x02hi", "")(k) }, append(fail(200, 13, "cardinality violation: received multiple request messages for non-client-streaming RPC"), rst(1, 0)...)},
		{"a message that is too large, before it comes", func(k *talk) {
			k.open(1, false, good)
			_ = k.WriteData(1, false, []byte("\x00\xff\xff\xff\xff"))
			_ = k.WriteData(1, true, []byte("more"))
		}, append(fail(200, 8, "grpc: received message larger than max (4294967295 vs. 16777216)"), rst(1, 0)...)},
		{"a compressed message", say("\x01\x00\x00\x00\x02hi"), fail(200, 13, "grpc: compressed flag set with identity or empty encoding")},
		{"a compressed message with grpc-encoding gzip", gzip("\x01", hi), answered(1)},
		{"the same encoding and a message that is not compressed", gzip("\x00", "hi"), answered(1)},
		{"a compressed message with grpc-encoding identity", func(k *talk) {
			k.open(1, false, with([2]string{"grpc-encoding", "identity"}))
			_ = k.WriteData(1, true, compressedFrame([]byte(hi)))
		}, fail(200, 13, "grpc: compressed flag set with identity or empty encoding")},
		{"a message that is not gzip", gzip("\x01", "hi and more"), fail(200, 13, "grpc: failed to decompress the message: gzip: invalid header")},
		{"a compressed message of no bytes", gzip("\x01", ""), fail(200, 13, "grpc: failed to decompress the message: EOF")},
		{"gzip cut short", gzip("\x01", hi[:len(hi)-1]), fail(200, 13, "grpc: failed to read decompressed data: unexpected EOF")},
		{"gzip and more", gzip("\x01", hi+"and more bytes"), fail(200, 13, "grpc: failed to read decompressed data: gzip: invalid header")},
		{"gzip with a wrong checksum", gzip("\x01", hi[:len(hi)-8]+"\x00\x00\x00\x00"+hi[len(hi)-4:]), fail(200, 13, "grpc: failed to read decompressed data: gzip: invalid checksum")},
		{"gzip of 17 MiB", gzip("\x01", string(bomb(17<<20))), fail(200, 8, "grpc: received message after decompression larger than max 16777216")},
		{"a format that is unknown", say("\x02\x00\x00\x00\x02hi"), fail(200, 13, "grpc: received unexpected payload format 2")},
		{"an encoding that is unknown", open(with([2]string{"grpc-encoding", "zip"})), []string{
			`HEADERS 1 status=200 status=12 message=grpc: Decompressor is not installed for grpc-encoding "zip" accept-encoding=identity,gzip END`}},
		{"no host", open(without(":authority")), fail(400, 13, "no host or :authority header present")},
		{"two hosts", open(append(fields{{":authority", "y"}}, good...)), fail(400, 13, "num values of :authority: 2, num values of host: 0, both must only have 1 value as per HTTP/2 spec")},
		{"another method", open(append(fields{{":method", "GET"}}, without(":method")...)), fail(405, 13, `Received a HEADERS frame with :method "GET" which should be POST`)},
		{"another type", open(without("content-type", [2]string{"content-type", "text/plain"})), fail(415, 3, `invalid gRPC request content-type "text/plain"`)},
		{"no type", open(without("content-type")), fail(415, 3, `invalid gRPC request content-type ""`)},
		{"a type that only begins so", open(without("content-type", [2]string{"content-type", "application/grpc-web"})), fail(415, 3, `invalid gRPC request content-type "application/grpc-web"`)},
		{"no time left", open(with([2]string{"grpc-timeout", "0n"})), fail(200, 4, "context deadline exceeded")},
		{"a field in base 64 that is not", open(with([2]string{"x-bin", "!!"})), fail(400, 13, `malformed binary metadata "!!" in header "x-bin": illegal base64 data at input byte 0`)},
		{"an answer before the call has come whole", func(k *talk) {
			k.open(1, false, append(fields{{":path", "/a.B/C"}}, without(":path")...))
			k.message(1, true, "hi")
		}, append(fail(200, 12, "unknown service a.B"), rst(1, 0)...)},
	}
	for _, s := range []string{"1H", "99999999H", "1M", "1S", "1000m", "1000000u", "99999999n"} {
		rows = append(rows, row{"grpc-timeout " + s, func(k *talk) { k.open(1, false, with([2]string{"grpc-timeout", s})); k.message(1, true, "hi") }, answered(1)})
	}
	for s, why := range map[string]string{"": "string is too short", "1": "string is too short", "1x": "unit is not recognized", "999999999S": "string is too long"} {
		rows = append(rows, row{"grpc-timeout " + s, open(with([2]string{"grpc-timeout", s})), fail(400, 13, `malformed grpc-timeout: transport: timeout `+why+`: "`+s+`"`)})
	}
	for _, s := range []string{"application/grpc+proto", "application/grpc;x", "application/grpc"} {
		rows = append(rows, row{"type " + s, func(k *talk) {
			k.open(1, false, without("content-type", [2]string{"content-type", s}))
			k.message(1, true, "hi")
		}, answered(1)})
	}
	declared := func(n string) fields { return with([2]string{"content-length", n}) }
	rows = append(rows,
		row{"8.1.1: more DATA than content-length says, at once", func(k *talk) { k.open(1, false, declared("3")); k.message(1, false, "hi") }, rst(1, protocol)},
		row{"8.1.1: less", func(k *talk) { k.open(1, false, declared("8")); k.message(1, true, "hi") }, rst(1, protocol)},
		row{"8.1.1: none at all", open(declared("7")), rst(1, protocol)},
		row{"8.1: a client that has ended its message is not asked to stop", func(k *talk) {
			k.open(1, false, good)
			_ = k.WriteData(1, true, []byte("\x00\x00\x00\x00\x02hi\x00\x00\x00\x00\x02hi"))
		}, fail(200, 13, "cardinality violation: received multiple request messages for non-client-streaming RPC")})
	return append(rows, row{"a header list that is too large", func(k *talk) {
		b := k.pack(with([2]string{"x", strings.Repeat("x", 70<<10)}, [2]string{"y", strings.Repeat("x", 70<<10)}))
		k.raw(http2.FrameHeaders, 1, 1, b[:16000])
		for b = b[16000:]; len(b) > 16000; b = b[16000:] {
			k.raw(http2.FrameContinuation, 0, 1, b[:16000])
		}
		k.raw(http2.FrameContinuation, 4, 1, b)
		k.call(3)
	}, join(rst(1, frameSize), answered(3))})
}
