{{/* Pod of a member: dict root, component. */}}
{{- define "keyward.memberPod" -}}
{{- $root := .root -}}
{{- $lib := fromYaml (include "keyward.libArguments" $root) -}}
metadata:
  labels:
    {{- include "keyward.selector" . | nindent 4 }}
    {{- include "keyward.sidecar.labels" $lib | nindent 4 }}
    {{- with merge (dict) $root.Values.podLabels $root.Values.commonLabels (fromYaml (include "keyward.presetLabels" $root)) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    keyward.io/environment: {{ include "keyward.environmentHash" $root }} # other variables need new pods; rules are reloaded
    {{- range $key, $value := $root.Values.podAnnotations }}
    {{ $key }}: {{ $value | toString | quote }}
    {{- end }}
spec:
  {{- include "keyward.podSpec" . | trim | nindent 2 }}
  terminationGracePeriodSeconds: {{ $root.Values.terminationGracePeriodSeconds }}
  containers:
    - name: keyward
      {{- $ports := list (dict "name" "grpc" "containerPort" 8081) }}
      {{- if $root.Values.service.http }}
      {{- $ports = append $ports (dict "name" "http" "containerPort" 8080) }}
      {{- end }}
      {{- $_ := set $lib "ports" $ports }}
      {{- include "keyward.container" $lib | nindent 6 }}
  volumes:
    {{- include "keyward.sidecar.volumes" $lib | nindent 4 }}
    {{- with $root.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Labels that exclude these pods from a mesh: their ports have their own mTLS, and gossip also uses UDP. */}}
{{- define "keyward.presetLabels" -}}
{{- if eq .Values.preset "istio" -}}
sidecar.istio.io/inject: "false"
istio.io/dataplane-mode: none
{{- end }}
{{- end }}
