package settings

// Tracing configures traces. The exporter reads its destination from the OTEL_* variables.
type Tracing struct {
	Enabled                      bool
	Service, Namespace, Instance string
	Protocol                     string  // http or grpc
	Rate                         float64 // fraction of the calls without a parent that start a trace
}

func tracingTable() []EnvVariable {
	return []EnvVariable{
		{"TRACING_ENABLED", "false", Honored,
			"Export OpenTelemetry traces; the exporter reads `OTEL_EXPORTER_OTLP_ENDPOINT` and similar variables.",
			func(s *Settings) any { return &s.Tracing.Enabled }},
		{"TRACING_SERVICE_NAME", "RateLimit", Honored, "`service.name` of the traces.",
			func(s *Settings) any { return &s.Tracing.Service }},
		{"TRACING_SERVICE_NAMESPACE", "", Honored, "`service.namespace` of the traces.",
			func(s *Settings) any { return &s.Tracing.Namespace }},
		{"TRACING_SERVICE_INSTANCE_ID", "", Honored,
			"`service.instance.id` of the traces; default the member's name.",
			func(s *Settings) any { return &s.Tracing.Instance }},
		{"TRACING_EXPORTER_PROTOCOL", "http", Honored, "`http` or `grpc`.",
			func(s *Settings) any { return &s.Tracing.Protocol }},
		{"TRACING_SAMPLING_RATE", "1", Honored,
			"Fraction of the calls without a parent that start a trace. A call with a parent is traced if its parent is.",
			func(s *Settings) any { return &s.Tracing.Rate }},
	}
}
