package cluster

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// logWriter turns memberlist's log lines into slog records. Their rate is limited, because any host that reaches the
// port can cause them. Memberlist reports rejected messages only in its log, so logWriter counts them as well.
type logWriter struct {
	logger   *slog.Logger
	limit    *rate.Limiter
	refused  func(reason string)
	refusals *refusals
}

var _ io.Writer = (*logWriter)(nil)

// Write logs one line.
func (l *logWriter) Write(p []byte) (int, error) {
	level, text := slog.LevelDebug, strings.TrimSpace(string(p))
	if rest, ok := strings.CutPrefix(text, "["); ok {
		if tag, msg, ok := strings.Cut(rest, "] "); ok {
			text = strings.TrimPrefix(msg, "memberlist: ")
			switch tag {
			case "WARN", "ERR", "ERROR":
				level = slog.LevelWarn
			}
		}
	}
	if reason := refusalReason(text); reason != "" && level == slog.LevelWarn {
		l.refused(reason)
		if from, ok := sourceOf(text); ok {
			l.refusals.add(from, reason, time.Now())
		}
	}
	if !l.logger.Enabled(context.Background(), level) || !l.limit.Allow() {
		return len(p), nil
	}
	l.logger.Log(context.Background(), level, "gossip", "event", text)
	return len(p), nil
}

// refusalReason returns the reason why memberlist rejected a message, according to a log line, or "" if the line is
// about something else.
func refusalReason(text string) string {
	lower := strings.ToLower(text)
	if !strings.Contains(lower, "from=") { // about a message that this member sent
		return ""
	}
	for _, r := range [...]struct{ has, reason string }{
		{errTooMuch.Error(), "too_large"},
		{errCrowded.Error(), refusedCrowded},
		{"crypt", "key"},
		{"encryption", "key"},
		{"label", "label"},
		{"larger than limit", "compressed"},
		{"decompress", "compressed"},
		{"failed to receive", "malformed"},
		{"failed to read remote state", "malformed"},
		{"decode", "malformed"},
		{"checksum", "malformed"},
		{"missing message type", "malformed"},
		{"not supported", "malformed"},
		{"invalid msgtype", "malformed"},
		{"truncated messages", "malformed"},
	} {
		if strings.Contains(lower, r.has) {
			return r.reason
		}
	}
	return ""
}
