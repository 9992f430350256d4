package loadtest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/http2"
)

// read handles what the server sends until the connection ends.
func (c *conn) read(socket net.Conn) error {
	in := bufio.NewReaderSize(socket, 64<<10)
	c.blocks, c.headers, c.unacked = newBlockReader(), nil, 0
	for {
		f, err := readFrame(in)
		c.mu.Lock()
		if err == nil {
			err = c.handleLocked(&f)
		}
		if err == nil && c.draining && len(c.streams) == 0 {
			err = errDrained
		}
		if err != nil {
			c.endLocked(socket, err)
			return err
		}
		pass := 0
		if in.Buffered() < frameHeader {
			c.flushLocked()
			pass, c.pass = c.pass, 0
		}
		c.mu.Unlock()
		for range pass {
			c.load.after(c).ask(time.Now(), true)
		}
	}
}

var errDrained = errors.New("the server has ended the connection")

// endLocked unlocks mu. A server that wants its connections renewed gets a new one when there are calls for it.
func (c *conn) endLocked(socket net.Conn, err error) {
	socket.Close()
	c.net, c.renew = nil, errors.Is(err, errDrained)
	if !c.renew {
		c.failLocked(err)
	} else if c.round != nil && c.waiting.len() > 0 {
		c.renewLocked()
	}
	c.mu.Unlock()
}

// renewLocked connects again, and then sends the calls that wait.
func (c *conn) renewLocked() {
	c.renew, c.dialing = false, true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
		defer cancel()
		err := c.dial(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dialing = false
		if err != nil {
			c.failLocked(err)
			return
		}
		c.sendLocked()
		c.flushLocked()
	}()
}

// after is the connection that a wandering call goes to from c: the first ones are one to each target.
func (l *Load) after(c *conn) *conn {
	return l.conns[(c.target+1)%min(len(l.Targets), len(l.conns))]
}

func (c *conn) handleLocked(f *frame) error {
	switch f.kind {
	case http2.FrameHeaders, http2.FrameContinuation:
		return c.headersLocked(f)
	case http2.FrameData:
		return c.dataLocked(f)
	case http2.FrameRSTStream:
		if s := c.streams[f.stream]; s != nil {
			c.doneLocked(f.stream, s, fmt.Errorf("the server has reset the stream, code %d", number(f.payload)))
		}
	case http2.FrameSettings:
		return c.settingsLocked(f)
	case http2.FramePing:
		if !f.flags.Has(http2.FlagPingAck) {
			c.out = appendFrame(c.out, frameKind{http2.FramePing, http2.FlagPingAck}, 0, f.payload...)
		}
	case http2.FrameWindowUpdate:
		if f.stream == 0 {
			c.window += int64(number(f.payload))
			c.sendLocked()
		}
	case http2.FrameGoAway:
		c.draining = true
	}
	return nil
}

// number is the number at the beginning of a payload; 0 of one that is too short.
func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b) & (1<<31 - 1)
}

func (c *conn) settingsLocked(f *frame) error {
	if f.flags.Has(http2.FlagSettingsAck) {
		return nil
	}
	for b := f.payload; len(b) >= 6; b = b[6:] {
		value := binary.BigEndian.Uint32(b[2:])
		switch http2.SettingID(binary.BigEndian.Uint16(b)) {
		case http2.SettingHeaderTableSize:
			if value < tableSize && c.begun && !c.literal {
				return errors.New("the server makes its header table smaller in the middle of calls")
			}
			c.literal = value < tableSize
		case http2.SettingMaxConcurrentStreams:
			c.most = int(min(value, mostStreams))
		}
	}
	c.out = appendFrame(c.out, frameKind{http2.FrameSettings, http2.FlagSettingsAck}, 0)
	if c.ready != nil {
		c.ready <- struct{}{}
		c.ready = nil
	}
	return nil
}

func (c *conn) headersLocked(f *frame) error {
	block := f.payload
	if f.kind == http2.FrameHeaders {
		var err error
		if block, err = f.body(); err != nil {
			return err
		}
		c.ending = f.flags.Has(http2.FlagHeadersEndStream)
	}
	if len(c.headers) > 0 || !f.flags.Has(http2.FlagHeadersEndHeaders) {
		c.headers = append(c.headers, block...)
		block = c.headers
	}
	if !f.flags.Has(http2.FlagHeadersEndHeaders) {
		return nil
	}
	c.headers = c.headers[:0]
	s := c.streams[f.stream]
	reply := &Reply{}
	if s != nil {
		reply = &s.reply
	}
	if err := c.blocks.read(block, reply); err != nil {
		return err
	}
	if s != nil && c.ending {
		c.doneLocked(f.stream, s, nil)
	}
	return nil
}

func (c *conn) dataLocked(f *frame) error {
	b, err := f.body()
	if err != nil {
		return err
	}
	if c.unacked += uint32(len(f.payload)); c.unacked > bigWindow/2 {
		c.out = appendWindowUpdate(c.out, c.unacked)
		c.unacked = 0
	}
	s := c.streams[f.stream]
	if s == nil {
		return nil
	}
	s.reply.Body = append(s.reply.Body, b...)
	if f.flags.Has(http2.FlagDataEndStream) {
		c.doneLocked(f.stream, s, nil)
	}
	return nil
}

// doneLocked ends a call and, as long as calls are to be in flight, begins the next one.
func (c *conn) doneLocked(id uint32, s *stream, err error) {
	delete(c.streams, id)
	c.free = append(c.free, s)
	r := c.round
	if r == nil {
		return
	}
	now, over := time.Now(), false
	if err == nil {
		over, err = c.answer(&s.reply)
	}
	switch {
	case err != nil:
		c.result.Errors++
		c.result.Err = err
	case over:
		c.result.Over++
	default:
		c.result.OK++
	}
	if err == nil {
		c.result.Latency.Add(now.Sub(s.begin))
	}
	switch {
	case r.paced || now.After(r.end):
		r.leave()
	case r.wander:
		c.pass++
	default:
		c.waiting.push(now)
	}
	c.sendLocked()
}

func (c *conn) answer(r *Reply) (bool, error) {
	s := &c.load.Service
	if s.Framed && r.Code == "0" {
		if len(r.Body) < 5 || r.Body[0] != 0 || int(binary.BigEndian.Uint32(r.Body[1:])) != len(r.Body)-5 {
			return false, errors.New("the answer is not one gRPC message")
		}
		whole := r.Body
		r.Body = whole[5:]
		defer func() { r.Body = whole }() // its memory is used again
	}
	return s.Read(r)
}
