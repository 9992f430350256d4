package settings

// Tracing says whether and how traces are written. Where they go is in the OTEL_* variables, which the exporter reads itself.
type Tracing struct {
	Enabled                      bool
	Service, Namespace, Instance string
	Protocol                     string  // http or grpc
	Rate                         float64 // part of the calls without a parent that begin a trace
}

func tracingTable() []EnvVariable {
	return []EnvVariable{
		{"TRACING_ENABLED", "false", Honored, "Write OpenTelemetry traces; the exporter reads `OTEL_EXPORTER_OTLP_ENDPOINT` and its kin.", func(s *Settings) any { return &s.Tracing.Enabled }},
		{"TRACING_SERVICE_NAME", "RateLimit", Honored, "`service.name` of the traces.", func(s *Settings) any { return &s.Tracing.Service }},
		{"TRACING_SERVICE_NAMESPACE", "", Honored, "`service.namespace` of the traces.", func(s *Settings) any { return &s.Tracing.Namespace }},
		{"TRACING_SERVICE_INSTANCE_ID", "", Honored, "`service.instance.id` of the traces; default the member's name.", func(s *Settings) any { return &s.Tracing.Instance }},
		{"TRACING_EXPORTER_PROTOCOL", "http", Honored, "`http` or `grpc`.", func(s *Settings) any { return &s.Tracing.Protocol }},
		{"TRACING_SAMPLING_RATE", "1", Honored, "Part of the calls without a parent that begin a trace. A call with a parent is recorded when its parent is.", func(s *Settings) any { return &s.Tracing.Rate }},
	}
}
