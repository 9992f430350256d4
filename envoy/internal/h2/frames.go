package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// frame processes a frame whose header has been read. Frames of calls are parsed in place. The others are rare and
// parsed by the Framer, which allocates.
func (c *conn) frame(h http2.FrameHeader) error {
	n := int(h.Length)
	if !c.settingsReceived && (h.Type != http2.FrameSettings || h.Flags.Has(http2.FlagSettingsAck)) {
		return connError{http2.ErrCodeProtocol, "first frame is not SETTINGS"}
	}
	switch h.Type {
	case http2.FrameData:
		return c.data(h, c.in.take(n))
	case http2.FrameHeaders:
		return c.openHeaders(h, c.in.take(n))
	case http2.FrameContinuation:
		return c.moreHeaders(h, c.in.take(n))
	case http2.FrameWindowUpdate:
		return c.windowUpdate(h, c.in.take(n))
	case http2.FrameSettings, http2.FramePing, http2.FrameRSTStream, http2.FrameGoAway, http2.FramePriority:
		f, err := c.fr.ReadFrameForHeader(h)
		if err != nil {
			return err
		}
		return c.control(f)
	case http2.FramePushPromise:
		return connError{http2.ErrCodeProtocol, "PUSH_PROMISE from a client"}
	}
	c.in.take(n) // RFC 9113, 5.5: unknown types are ignored
	return c.spendControl(1)
}

// control processes a frame that the Framer has parsed.
func (c *conn) control(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		return c.ping(f)
	case *http2.RSTStreamFrame:
		return c.rst(f.StreamID)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.GoAwayFrame: // the client opens no more streams, and closes the connection when it is done
	}
	return c.spendControl(1)
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return c.spendControl(1)
	}
	for i := range f.NumSettings() {
		if err := c.setting(f.Setting(i)); err != nil {
			return err
		}
	}
	if !c.settingsReceived {
		c.settingsReceived = true
		c.timers.due[timerSettings] = never
	}
	c.out = appendHead(c.out, 0, frameKind{http2.FrameSettings, http2.FlagSettingsAck}, 0)
	return c.spendControl(1 + f.NumSettings() + len(c.streams)/64)
}

func (c *conn) setting(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingInitialWindowSize:
		return c.setFirst(int64(s.Val))
	case http2.SettingMaxFrameSize:
		c.maxFrame = int64(s.Val)
	case http2.SettingHeaderTableSize:
		if s.Val < headerTableSize {
			c.shrinkTable()
		}
	}
	return nil
}

func (c *conn) ping(f *http2.PingFrame) error {
	if f.IsAck() {
		if c.duplexPingAck(f.Data) {
			return c.broken
		}
		c.pingAck(f.Data)
		return c.spendControl(1)
	}
	c.out = appendHead(c.out, len(f.Data), frameKind{http2.FramePing, http2.FlagPingAck}, 0)
	c.out = append(c.out, f.Data[:]...)
	return c.spendControl(1)
}

// rst processes RST_STREAM.
func (c *conn) rst(id uint32) error {
	if c.idle(id) {
		return connError{http2.ErrCodeProtocol, "RST_STREAM of an idle stream"}
	}
	if k := c.streams[id]; k != nil {
		c.abandonCall(k)
	}
	if c.abandonLate(id); c.broken != nil {
		return c.broken
	}
	return c.spendControl(1)
}

// idle reports whether the stream has not been opened yet.
func (c *conn) idle(id uint32) bool { return id%2 == 0 || id > c.highestStream }

// reset ends a stream with an error.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	if k := c.streams[id]; k != nil {
		c.abandonCall(k)
	}
	c.refused(code)
	c.out = appendReset(c.out, id, code)
	if !c.idle(id) { // a frame that opens no stream, such as PRIORITY, may be invalid; its stream may still be opened
		c.closed.add(id)
	}
}

// writeSettings advertises the limits to the client.
func (c *conn) writeSettings() {
	settings := [...]http2.Setting{
		{ID: http2.SettingMaxConcurrentStreams, Val: c.server.o.Limits.Streams},
		{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.server.o.Limits.HeaderList)},
	}
	c.out = appendHead(c.out, 6*len(settings), frameKind{http2.FrameSettings, 0}, 0)
	for _, s := range settings {
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(s.ID))
		c.out = binary.BigEndian.AppendUint32(c.out, s.Val)
	}
	c.out = appendWindow(c.out, 0, connWindow-firstWindow)
	c.recvWindow = connWindow
}

// closedStreams are streams that this side has ended while frames from the client may still be in flight. Those
// frames are ignored: RFC 9113, 5.1. When it is full it forgets streams; all streams up to the highest forgotten one
// count as closed.
type closedStreams struct {
	ids       [64]uint32
	next      int
	forgotten uint32
}

func (s *closedStreams) add(id uint32) {
	if !s.has(id) {
		s.forgotten = max(s.forgotten, s.ids[s.next])
		s.ids[s.next] = id
		s.next = (s.next + 1) % len(s.ids)
	}
}

func (s *closedStreams) has(id uint32) bool {
	if id <= s.forgotten {
		return id%2 == 1
	}
	for _, other := range s.ids {
		if other == id {
			return true
		}
	}
	return false
}
