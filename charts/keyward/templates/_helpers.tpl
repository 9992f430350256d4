{{- define "keyward.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "keyward.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "keyward.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* metadata of an object: dict root, name, component, optionally labels and annotations. */}}
{{- define "keyward.metadata" -}}
{{- $root := .root -}}
name: {{ .name }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "keyward.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
  {{- with merge (dict) (.labels | default dict) $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels that never change: dict root, component. */}}
{{- define "keyward.selector" -}}
app.kubernetes.io/name: {{ include "keyward.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "keyward.image" -}}
{{- $i := .Values.image -}}
{{- with $i.registry }}{{ . }}/{{ end }}{{ $i.repository }}
{{- if $i.digest }}@{{ $i.digest }}{{ else }}:{{ $i.tag | default (printf "v%s" .Chart.AppVersion) }}{{ end -}}
{{- end }}

{{/* Image with the dynamic module's files. */}}
{{- define "keyward.moduleImage" -}}
{{- $i := .Values.image -}}
{{- if .Values.module.image }}{{ .Values.module.image }}{{ else -}}
{{- with $i.registry }}{{ . }}/{{ end }}{{ $i.repository }}-module:{{ $i.tag | default (printf "v%s" .Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{- define "keyward.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "keyward.fullname" .) -}}
{{- end }}

{{/* Name of the Service whose port 8081 gateways use. */}}
{{- define "keyward.service" -}}
{{- $byPreset := dict "envoy-ai-gateway" "envoy-ai-gateway-ratelimit" -}}
{{- .Values.service.name | default (get $byPreset .Values.preset) | default (include "keyward.fullname" .) -}}
{{- end }}

{{/* "true" if there are members. */}}
{{- define "keyward.members" -}}
{{- if ne .Values.mode "coordinator" }}true{{ end -}}
{{- end }}

{{/* "true" if this chart runs the members in their own pods. With envoy-gateway the gateway runs them. */}}
{{- define "keyward.ownPods" -}}
{{- if and (include "keyward.members" .) (ne .Values.mode "sidecar") (ne .Values.preset "envoy-gateway") }}true{{ end -}}
{{- end }}

{{/* "true" if xDS servers run. */}}
{{- define "keyward.xds" -}}
{{- if not (include "keyward.members" .) -}}
{{- else if eq (toString .Values.xds.enabled) "auto" -}}
{{- if not (has .Values.preset (list "envoy-gateway" "envoy-ai-gateway" "contour" "kgateway")) }}true{{ end -}}
{{- else if eq (toString .Values.xds.enabled) "true" }}true{{ end -}}
{{- end }}

{{/* "true" if there is a pod for `helm test`. */}}
{{- define "keyward.test" -}}
{{- if and .Values.test.enabled (include "keyward.members" .) (or .Values.test.domain (not (include "keyward.gatewayRules" .))) }}true{{ end -}}
{{- end }}

{{/* "true" if that pod uses the Envoys' certificate. */}}
{{- define "keyward.testSecret" -}}
{{- if and (include "keyward.test" .) (ne (include "keyward.tlsMode" .) "off") (or (not (include "keyward.ownPods" .)) .Values.service.tls) }}true{{ end -}}
{{- end }}

{{/* "true" if rules come from a gateway's control plane instead of a ConfigMap. */}}
{{- define "keyward.gatewayRules" -}}
{{- if has .Values.preset (list "envoy-gateway" "envoy-ai-gateway") }}true{{ end -}}
{{- end }}

{{- define "keyward.tlsMode" -}}
{{- if ne .Values.tls.mode "auto" }}{{ .Values.tls.mode }}
{{- else if .Capabilities.APIVersions.Has "cert-manager.io/v1" }}cert-manager
{{- else }}generate{{ end -}}
{{- end }}

{{/* Name of a Secret with a certificate: dict root, of: member, xds or envoy. */}}
{{- define "keyward.tlsSecret" -}}
{{- $t := .root.Values.tls -}}
{{- $full := include "keyward.fullname" .root -}}
{{- if eq (include "keyward.tlsMode" .root) "secret" -}}
{{- $given := get (dict "member" $t.existingSecret "xds" $t.xdsSecret "envoy" $t.envoySecret) .of -}}
{{- required (printf "tls.mode secret: the Secret of %s is missing" .of) $given -}}
{{- else if eq .of "member" }}{{ $full }}-tls
{{- else }}{{ $full }}-{{ .of }}-tls{{ end -}}
{{- end }}

{{/* The name in the certificates of all members. */}}
{{- define "keyward.memberName" -}}
{{ include "keyward.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The names of a certificate: dict root, of. Other processes verify the first. */}}
{{- define "keyward.dnsNames" -}}
{{- $full := include "keyward.fullname" .root -}}
{{- $ns := .root.Release.Namespace -}}
{{- if eq .of "member" }}
- {{ include "keyward.memberName" .root }}
- {{ $full }}-gossip.{{ $ns }}.svc
{{- $service := include "keyward.service" .root }}
{{- if ne $service $full }}
- {{ $service }}.{{ $ns }}.svc
{{- end }}
{{- if include "keyward.regionsListen" .root }}
- {{ $full }}-regions.{{ $ns }}.svc
{{- end }}
{{- range .root.Values.federation.hostNames }}
- {{ . }}
{{- end }}
{{- else }}
- {{ $full }}-{{ .of }}.{{ $ns }}.svc
{{- end }}
{{- end }}

{{- define "keyward.gossipSecret" -}}
{{- .Values.gossip.existingSecret | default (printf "%s-gossip" (include "keyward.fullname" .)) -}}
{{- end }}

{{- define "keyward.rulesConfigMap" -}}
{{- .Values.rulesConfigMap | default (printf "%s-rules" (include "keyward.fullname" .)) -}}
{{- end }}

{{/* The file with the example rule. */}}
{{- define "keyward.exampleFile" -}}
{{- if .Values.quota.enabled }}files/example-quota.yaml{{ else if .Values.module.enabled }}files/example-module.yaml{{ else }}files/example.yaml{{ end -}}
{{- end }}

{{/* The rule files, as YAML. */}}
{{- define "keyward.rules" -}}
{{- toYaml (.Values.rules | default (dict "example.yaml" (.Files.Get (include "keyward.exampleFile" .)))) -}}
{{- end }}

{{/* The variable with a member's zone, from a label of its pod, as a list. */}}
{{- define "keyward.zone" -}}
{{- with .Values.zoneLabel }}
- {name: KEYWARD_ZONE, valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ . }}']"}}}
{{- else -}}
[]
{{- end }}
{{- end }}

{{/* Arguments for keyward-lib that match the objects of this chart. */}}
{{- define "keyward.libArguments" -}}
release: {{ include "keyward.fullname" . }}
image: {{ include "keyward.image" . }}
pullPolicy: {{ .Values.image.pullPolicy }}
tls: {{ ne (include "keyward.tlsMode" .) "off" }}
gossipSecret: {{ include "keyward.gossipSecret" . }}
tlsSecret: {{ include "keyward.tlsSecret" (dict "root" . "of" "member") }}
rulesConfigMap: {{ include "keyward.rulesConfigMap" . }}
{{- if .Values.federation.region }}
federationConfigMap: {{ include "keyward.fullname" . }}-federation
federationPort: {{ not (empty (include "keyward.regionsListen" .)) }}
authoritySecrets:
  {{- include "keyward.authoritySecrets" . | nindent 2 }}
{{- end }}
dataVolume: {{ ternary "claim" .Values.data.volume (eq .Values.data.volume "pvc") }}
dataSize: {{ .Values.data.size }}
dataPath: {{ .Values.data.hostPath }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
args:
  {{- toYaml .Values.extraArgs | nindent 2 }}
env:
  {{- toYaml (concat .Values.extraEnv (fromYamlArray (include "keyward.zone" .))) | nindent 2 }}
volumeMounts:
  {{- toYaml .Values.extraVolumeMounts | nindent 2 }}
{{- end }}

{{- define "keyward.expect" -}}
{{- .Values.expect | default (ternary .Values.autoscaling.minReplicas .Values.replicaCount .Values.autoscaling.enabled) -}}
{{- end }}

{{/* Common part of all pods: dict root, component, optionally account, a service account whose token is mounted. */}}
{{- define "keyward.podSpec" -}}
{{- with .root.Values }}
serviceAccountName: {{ $.account | default (include "keyward.serviceAccount" $.root) }}
automountServiceAccountToken: {{ not (empty $.account) }}
enableServiceLinks: false
{{- with .imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  {{- if and (eq .data.volume "pvc") (eq $.component "member") }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and .topologySpread.enabled (not (has $.component (list "node" "certs"))) }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: {{ $.root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "keyward.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
