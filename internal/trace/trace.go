// Package trace reports Envoy's calls to OpenTelemetry: one span per call, and one for the time in which the Decider
// ran.
package trace

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/keyward/keyward/envoy/rls"
)

// Options configure a CallTracer. The variables of the OpenTelemetry SDK, such as OTEL_EXPORTER_OTLP_ENDPOINT,
// determine where traces are sent.
type Options struct {
	Service, Namespace, Instance string
	Protocol                     string // of the exporter: "http" or "grpc"
	// Fraction of the calls without a parent that start a trace; a call with a parent is traced if its parent is.
	Rate float64
	// These return names for what a sample contains.
	Path, Authority, Owner func(*rls.DecisionSample) string

	Log *slog.Logger // logs errors of the exporter; nil: no logs
}

// CallTracer records calls as traces. It is safe for concurrent use.
type CallTracer struct {
	o        Options
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	headers  propagation.TextMapPropagator
}

// Start starts exporting traces. A slow collector never delays a call: spans wait in a bounded queue and are dropped
// when it is full.
func Start(ctx context.Context, o Options) (*CallTracer, error) {
	client := otlptracehttp.NewClient()
	switch o.Protocol {
	case "", "http":
	case "grpc":
		client = otlptracegrpc.NewClient()
	default:
		return nil, fmt.Errorf("TRACING_EXPORTER_PROTOCOL=%q: want http or grpc", o.Protocol)
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	if o.Log != nil {
		otel.SetErrorHandler(quiet(o.Log))
	}
	about := resource.NewWithAttributes(semconv.SchemaURL, semconv.ServiceName(o.Service),
		semconv.ServiceNamespace(o.Namespace), semconv.ServiceInstanceID(o.Instance))
	return newTracer(o, sdk.WithBatcher(exporter), sdk.WithResource(about)), nil
}

// quiet logs errors of the exporter at most once per minute: a collector may be unavailable for long.
func quiet(log *slog.Logger) otel.ErrorHandler {
	var next atomic.Int64
	return otel.ErrorHandlerFunc(func(err error) {
		now := time.Now().UnixNano()
		if at := next.Load(); now >= at && next.CompareAndSwap(at, now+int64(time.Minute)) {
			log.Warn("traces dropped by the exporter", "error", err)
		}
	})
}

func newTracer(o Options, more ...sdk.TracerProviderOption) *CallTracer {
	more = append(more, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Rate))))
	p := sdk.NewTracerProvider(more...)
	return &CallTracer{o: o, provider: p, tracer: p.Tracer("github.com/keyward/keyward"),
		headers: propagation.TraceContext{}}
}

// Stop exports the remaining spans until ctx is done.
func (t *CallTracer) Stop(ctx context.Context) error { return t.provider.Shutdown(ctx) }

// carrier reads a call's headers for the propagator.
type carrier func(string) string

func (c carrier) Get(key string) string { return c(key) }
func (carrier) Set(string, string)      {}
func (carrier) Keys() []string          { return nil }

// Headers implements rls.Tracer.
func (t *CallTracer) Headers() []string { return t.headers.Fields() }

// Begin implements rls.Tracer.
func (t *CallTracer) Begin(header func(string) string) func(*rls.Call, rls.CallTrace) {
	ctx := t.headers.Extract(context.Background(), carrier(header))
	if parent := trace.SpanContextFromContext(ctx); parent.IsValid() && !parent.IsSampled() {
		return nil
	}
	ctx, span := t.tracer.Start(ctx, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
		trace.WithSpanKind(trace.SpanKindServer))
	if !span.IsRecording() {
		return nil
	}
	return func(c *rls.Call, how rls.CallTrace) {
		t.addDecideSpan(ctx, &how)
		t.finish(span, c, &how)
	}
}

// addDecideSpan adds the span of the time in which the requests were decided.
func (t *CallTracer) addDecideSpan(ctx context.Context, how *rls.CallTrace) {
	if how.DecideStart.IsZero() {
		return
	}
	_, span := t.tracer.Start(ctx, "decide", trace.WithTimestamp(how.DecideStart))
	span.End(trace.WithTimestamp(how.DecideEnd))
}

// finish sets the attributes of the span and ends it. They contain no value that a caller sent: a key is identified
// by its ring position.
func (t *CallTracer) finish(span trace.Span, c *rls.Call, how *rls.CallTrace) {
	if c.Err != nil {
		span.SetStatus(codes.Error, c.Err.Error())
	}
	span.SetAttributes(attribute.String("rl.domain", c.Request.Domain),
		attribute.String("rl.code", code(c.Response.Code)))
	for i := range how.Samples {
		span.AddEvent("descriptor", trace.WithAttributes(t.attributes(&how.Samples[i])...))
	}
	span.End()
}

// attributes returns the attributes of one descriptor. A descriptor that is not counted has no path and authority.
func (t *CallTracer) attributes(x *rls.DecisionSample) []attribute.KeyValue {
	as := []attribute.KeyValue{
		attribute.String("rl.rule", x.Rule), attribute.String("rl.decision", code(x.Code)),
		attribute.Int64("rl.hits", int64(min(x.Hits, math.MaxInt64))),
	}
	if !x.Counted {
		return as
	}
	return append(as,
		attribute.String("rl.path", t.o.Path(x)), attribute.String("rl.authority", t.o.Authority(x)),
		attribute.String("rl.owner", t.o.Owner(x)),
		attribute.String("rl.key", fmt.Sprintf("%016x", x.Owner)), attribute.Int64("rl.limit", int64(x.Limit)),
		attribute.Int64("rl.remaining", int64(x.Remaining)),
	)
}

func code(c rls.Code) string {
	switch c {
	case rls.OK:
		return "ok"
	case rls.OverLimit:
		return "over_limit"
	default:
		return "unknown"
	}
}
