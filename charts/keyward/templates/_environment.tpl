{{/* Environment of members and xDS servers. */}}
{{- define "keyward.clusterEnvironment" -}}
KEYWARD_JOIN: dns+{{ include "keyward.fullname" . }}-gossip:7946
KEYWARD_CLUSTER: {{ .Release.Namespace }}/{{ include "keyward.fullname" . }}
KEYWARD_GOSSIP_KEY_FILE: /etc/keyward/gossip/gossip.key
{{- if eq (include "keyward.tlsMode" .) "off" }}
KEYWARD_INSECURE: "true"
{{- else }}
KEYWARD_TLS_CERT: /etc/keyward/tls/tls.crt
KEYWARD_TLS_KEY: /etc/keyward/tls/tls.key
KEYWARD_TLS_CA: /etc/keyward/tls/ca.crt
{{- with fromYamlArray (include "keyward.envoyNames" .) }}
KEYWARD_TLS_ENVOY_NAMES: {{ join "," . }}
{{- end }}
{{- end }}
LOG_LEVEL: INFO
LOG_FORMAT: json
{{- end }}

{{/* Names of the certificates of Envoys, as a list. The CA of an issuer may also sign for others, so a name is always required. */}}
{{- define "keyward.envoyNames" -}}
{{- $names := .Values.tls.envoyNames -}}
{{- if ne (include "keyward.tlsMode" .) "secret" -}}
{{- $names = concat (fromYamlArray (include "keyward.dnsNames" (dict "root" . "of" "envoy"))) $names -}}
{{- end -}}
{{- toYaml $names -}}
{{- end }}

{{/* Environment of members. */}}
{{- define "keyward.environment" -}}
{{- $env := fromYaml (include "keyward.clusterEnvironment" .) -}}
{{- $_ := set $env "KEYWARD_RLS_ADVERTISE" ":8082" -}}
{{- if not (and (eq .Values.mode "daemonset") (eq (int .Values.expect) 0)) -}}
{{- $_ := set $env "KEYWARD_EXPECT" (include "keyward.expect" .) -}}
{{- end -}}
{{- $_ := set $env "RUNTIME_ROOT" "/data" -}}
{{- $_ := set $env "RUNTIME_SUBDIRECTORY" "ratelimit" -}}
{{- $_ := set $env "RUNTIME_WATCH_ROOT" "false" -}}
{{- $_ := set $env "RUNTIME_IGNOREDOTFILES" "true" -}}
{{- $_ := set $env "USE_STATSD" "false" -}}
{{- if not (include "keyward.gatewayRules" .) -}} {{- /* a gateway has no rules before its first policy */}}
{{- $_ := set $env "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" "true" -}}
{{- end -}}
{{- if include "keyward.ownPods" . -}}
{{- $_ := set $env "GRPC_HOST" "" -}}
{{- if .Values.service.http -}}
{{- $_ := set $env "HOST" "" -}}
{{- end -}}
{{- if .Values.service.tls -}}
{{- $_ := set $env "GRPC_SERVER_USE_TLS" "true" -}}
{{- $_ := set $env "GRPC_SERVER_TLS_CERT" "/etc/keyward/tls/tls.crt" -}}
{{- $_ := set $env "GRPC_SERVER_TLS_KEY" "/etc/keyward/tls/tls.key" -}}
{{- if .Values.service.clientCertificates -}}
{{- $_ := set $env "GRPC_CLIENT_TLS_CACERT" "/etc/keyward/tls/ca.crt" -}}
{{- $names := fromYamlArray (include "keyward.envoyNames" .) -}}
{{- if eq (len $names) 1 -}} {{- /* the variable holds one name */}}
{{- $_ := set $env "GRPC_CLIENT_TLS_SAN" (first $names) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.ring.kind "envoy" -}}
{{- $_ := set $env "KEYWARD_RING" "envoy" -}}
{{- $_ := set $env "KEYWARD_RING_HOST" .Values.ring.host -}}
{{- $_ := set $env "KEYWARD_RING_MIN_SIZE" (.Values.ring.minSize | int | toString) -}}
{{- $_ := set $env "KEYWARD_RING_MAX_SIZE" (.Values.ring.maxSize | int | toString) -}}
{{- $_ := set $env "KEYWARD_RING_HASH" .Values.ring.hash -}}
{{- end -}}
{{- if .Values.federation.region -}}
{{- $env = merge $env (fromYaml (include "keyward.federationEnvironment" .)) -}}
{{- end -}}
{{- if ne .Values.data.volume "none" -}} {{- /* KEYWARD_DATA is set where the volume is mounted */}}
{{- $_ := set $env "KEYWARD_DATA_WINDOW" .Values.data.window -}}
{{- $_ := set $env "KEYWARD_DATA_SIZE" (include "keyward.dataSize" .) -}}
{{- end -}}
{{- if ne .Values.audit.log "stdout" -}}
{{- $_ := set $env "KEYWARD_AUDIT_LOG" .Values.audit.log -}}
{{- with .Values.audit.otlpEndpoint -}}
{{- $_ := set $env "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT" . -}}
{{- end -}}
{{- end -}}
{{- if not (has .Values.preset (list "" "envoy")) -}} {{- /* these gateways do not let Envoy add the header */}}
{{- $_ := set $env "KEYWARD_RETRY_AFTER" "true" -}}
{{- end -}}
{{- if eq .Values.preset "envoy-ai-gateway" -}}
{{- range $k, $v := fromYaml (include "keyward.aiGatewayEnvironment" .) -}}
{{- $_ := set $env $k $v -}}
{{- end -}}
{{- end -}}
{{- range $k, $v := .Values.environment -}}
{{- $_ := set $env $k (toString $v) -}}
{{- end -}}
{{- toYaml $env -}}
{{- end }}

{{/* Bytes of a member's journal: half of the volume, which also has that of the former boot. */}}
{{- define "keyward.dataSize" -}}
{{- printf "%dMiB" (div (include "keyward.dataMiB" . | int64) 2) -}}
{{- end }}

{{/* Size of the volume in MiB. */}}
{{- define "keyward.dataMiB" -}}
{{- $number := regexFind "^[0-9]+" .Values.data.size -}}
{{- $unit := trimPrefix $number .Values.data.size -}}
{{- mul (int64 $number) (get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) $unit) -}}
{{- end }}

{{/* Changes if pods must be replaced. It does not depend on the number of members, which matters only at a cold start. */}}
{{- define "keyward.environmentHash" -}}
{{- omit (fromYaml (include "keyward.environment" .)) "KEYWARD_EXPECT" | toYaml | sha256sum | trunc 16 | quote -}}
{{- end }}

{{/* Source of the rules with Envoy AI Gateway: its controller creates them from QuotaPolicies. */}}
{{- define "keyward.aiGatewayEnvironment" -}}
CONFIG_TYPE: GRPC_XDS_SOTW
CONFIG_GRPC_XDS_NODE_ID: envoy-ai-gateway-ratelimit
CONFIG_GRPC_XDS_SERVER_URL: ai-gateway-controller.envoy-ai-gateway-system.svc:18002
FORCE_START_WITHOUT_INITIAL_CONFIG: "true"
RESPONSE_DYNAMIC_METADATA: "true"
{{- end }}
