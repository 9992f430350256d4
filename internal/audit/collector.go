package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// exportTimeout bounds one request to the collector.
const exportTimeout = 10 * time.Second

// collector sends records to an OTLP collector by HTTP, as OTEL_EXPORTER_OTLP_LOGS_ENDPOINT, or
// OTEL_EXPORTER_OTLP_ENDPOINT, and OTEL_EXPORTER_OTLP_HEADERS configure it.
type collector struct {
	url     string
	headers http.Header
	about   *resource.Resource
	client  http.Client
}

func newCollector(service, member string, getenv func(string) string) *collector {
	c := &collector{url: getenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"), headers: http.Header{}}
	if c.url == "" {
		base := getenv("OTEL_EXPORTER_OTLP_ENDPOINT")
		if base == "" {
			base = "http://localhost:4318"
		}
		c.url = strings.TrimSuffix(base, "/") + "/v1/logs"
	}
	for _, pair := range strings.Split(getenv("OTEL_EXPORTER_OTLP_HEADERS"), ",") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			if plain, err := url.PathUnescape(strings.TrimSpace(v)); err == nil {
				c.headers.Set(strings.TrimSpace(k), plain)
			}
		}
	}
	c.headers.Set("Content-Type", "application/x-protobuf")
	c.client.Timeout = exportTimeout
	// A client that follows a redirection may send a GET without the records.
	c.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.about = &resource.Resource{Attributes: []*common.KeyValue{text("service.name", service), text("service.instance.id", member)}}
	return c
}

// write implements sink.
func (c *collector) write(ctx context.Context, records []Record) (int, error) {
	scope := &logs.ScopeLogs{Scope: &common.InstrumentationScope{Name: "github.com/keyward/keyward/audit"}}
	for i := range records {
		r := &records[i]
		body, err := json.Marshal(r)
		if err != nil {
			return 0, err
		}
		scope.LogRecords = append(scope.LogRecords, &logs.LogRecord{
			TimeUnixNano: uint64(r.Time.UnixNano()), ObservedTimeUnixNano: uint64(r.Time.UnixNano()),
			SeverityNumber: logs.SeverityNumber_SEVERITY_NUMBER_INFO, EventName: "keyward.audit." + r.Kind,
			Body:       &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: string(body)}},
			Attributes: []*common.KeyValue{text("keyward.kind", r.Kind), text("keyward.key", r.Key), text("keyward.digest", r.Digest), text("keyward.peer", r.Peer)},
		})
	}
	// LogsData has the wire format of ExportLogsServiceRequest.
	msg, err := proto.Marshal(&logs.LogsData{ResourceLogs: []*logs.ResourceLogs{{Resource: c.about, ScopeLogs: []*logs.ScopeLogs{scope}}}})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(msg))
	if err != nil {
		return 0, err
	}
	req.Header = c.headers.Clone()
	res, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<16))
	if res.StatusCode/100 != 2 {
		return 0, fmt.Errorf("the collector at %s answered %s", c.url, res.Status)
	}
	return len(records), nil
}

// close implements sink.
func (c *collector) close() { c.client.CloseIdleConnections() }

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}
