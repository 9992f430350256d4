package main

import (
	"bufio"
	"bytes"
	"context"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// The arguments that turn this program into one of the servers of the comparison.
const (
	floorCommand    = "floor"
	upstreamCommand = "upstream"
)

// serveConns serves each connection by itself until the process is ended.
func serveConns(addr string, serve func(net.Conn) error) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_ = serve(c) // how a client leaves does not matter
		}()
	}
}

// floor is the least that HTTP/2 frames in Go cost: x/net's Framer and hpack, a constant answer in place, one write for all answers of a
// read. It decodes no message, decides nothing and has no limits: nothing to serve others with.
type floor struct {
	out     bytes.Buffer
	frames  *http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	answer  []byte
	got     uint32 // bytes since the last WINDOW_UPDATE
}

func serveFloor(c net.Conn) error {
	in := bufio.NewReaderSize(c, 64<<10)
	if _, err := in.Discard(len(http2.ClientPreface)); err != nil {
		return err
	}
	f := &floor{}
	f.frames = http2.NewFramer(&f.out, in)
	f.frames.SetReuseFrames()
	f.encoder = hpack.NewEncoder(&f.block)
	res, _ := constant{}.ShouldRateLimit(context.Background(), nil)
	message, err := proto.Marshal(res)
	if err != nil {
		return err
	}
	f.answer = append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	headers := hpack.NewDecoder(4096, func(hpack.HeaderField) {})
	if err := f.frames.WriteSettings(); err != nil {
		return err
	}
	for {
		frame, err := f.frames.ReadFrame()
		if err != nil {
			return err
		}
		if err := f.handle(frame, headers); err != nil {
			return err
		}
		if in.Buffered() == 0 && f.out.Len() > 0 {
			if _, err := c.Write(f.out.Bytes()); err != nil {
				return err
			}
			f.out.Reset()
		}
	}
}

func (f *floor) handle(frame http2.Frame, headers *hpack.Decoder) error {
	switch frame := frame.(type) {
	case *http2.HeadersFrame:
		_, err := headers.Write(frame.HeaderBlockFragment())
		return err
	case *http2.DataFrame:
		if f.got += frame.Length; f.got > 1<<14 {
			_ = f.frames.WriteWindowUpdate(0, f.got) // to a buffer, as all here
			f.got = 0
		}
		if frame.StreamEnded() {
			f.reply(frame.StreamID)
		}
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return f.frames.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			return f.frames.WritePing(true, frame.Data)
		}
	}
	return nil
}

func (f *floor) reply(stream uint32) {
	f.headers(stream, false, hpack.HeaderField{Name: ":status", Value: "200"}, hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
	_ = f.frames.WriteData(stream, false, f.answer)
	f.headers(stream, true, hpack.HeaderField{Name: "grpc-status", Value: "0"})
}

func (f *floor) headers(stream uint32, end bool, fields ...hpack.HeaderField) {
	f.block.Reset()
	for _, h := range fields {
		_ = f.encoder.WriteField(h)
	}
	_ = f.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndStream: end, EndHeaders: true, BlockFragment: f.block.Bytes()})
}

// serveUpstream is the application behind Envoy: it answers each HTTP/1.1 request without a body, for as little as it can.
func serveUpstream(c net.Conn) error {
	const end, answer = "\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
	in := bufio.NewReader(c)
	var out []byte
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == len(end)/2 { // an empty line ends a request
			out = append(out, answer...)
		}
		if in.Buffered() == 0 && len(out) > 0 {
			if _, err := c.Write(out); err != nil {
				return err
			}
			out = out[:0]
		}
	}
}
