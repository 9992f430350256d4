{{/* Pod of a member: dict root, component. */}}
{{- define "keyward.memberPod" -}}
{{- $root := .root -}}
{{- $lib := fromYaml (include "keyward.libArguments" $root) -}}
metadata:
  labels:
    {{- include "keyward.selector" . | nindent 4 }}
    {{- include "keyward.sidecar.labels" $lib | nindent 4 }}
    {{- with merge (dict) $root.Values.podLabels $root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    keyward.io/environment: {{ include "keyward.environmentHash" $root }} # other variables, other pods; rules are read again as they are
    {{- with include "keyward.presetAnnotations" $root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "keyward.podSpec" . | trim | nindent 2 }}
  terminationGracePeriodSeconds: {{ $root.Values.terminationGracePeriodSeconds }}
  containers:
    - name: keyward
      {{- $_ := set $lib "ports" (list (dict "name" "grpc" "containerPort" 8081) (dict "name" "http" "containerPort" 8080)) }}
      {{- include "keyward.container" $lib | nindent 6 }}
  volumes:
    {{- include "keyward.sidecar.volumes" $lib | nindent 4 }}
    {{- with $root.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Annotations by which a mesh leaves these pods alone: members have mTLS of their own, and gossip over UDP. */}}
{{- define "keyward.presetAnnotations" -}}
{{- if eq .Values.preset "istio" -}}
traffic.sidecar.istio.io/excludeInboundPorts: "7946,7947"
traffic.sidecar.istio.io/excludeOutboundPorts: "7946,7947"
{{- end }}
{{- end }}
