{{/* "true" if pods of this release serve port 7948. */}}
{{- define "keyward.regionsListen" -}}
{{- if or (eq .Values.mode "coordinator") (and .Values.federation.region .Values.federation.listen.enabled) }}true{{ end -}}
{{- end }}

{{/* "true" if pods of this release read the layout. */}}
{{- define "keyward.federated" -}}
{{- if or (eq .Values.mode "coordinator") .Values.federation.region }}true{{ end -}}
{{- end }}

{{/* The file of --federation: the former layouts, and the newest one. */}}
{{- define "keyward.layout" -}}
{{- range .Values.federation.formerLayouts -}}
{{ include "keyward.oneLayout" . }}
---
{{ end -}}
{{ include "keyward.oneLayout" .Values.federation.layout }}
{{- end }}

{{/* One layout. */}}
{{- define "keyward.oneLayout" -}}
name: {{ .name | quote }}
epoch: {{ int64 .epoch }}
{{- with .from }}
from: {{ . | quote }}
{{- end }}
coordinator: {{ .coordinator | quote }}
regions:
{{- range .regions }}
  - name: {{ .name | quote }}
    {{- if hasKey . "weight" }}
    weight: {{ int64 .weight }}
    {{- end }}
    {{- with .address }}
    address: {{ . | quote }}
    {{- end }}
{{- end }}
{{- end }}

{{/* Authorities whose URL is in a Secret, as a list. */}}
{{- define "keyward.authoritySecrets" -}}
{{- $secrets := list -}}
{{- range .Values.federation.authorities -}}
{{- if .secretName -}}
{{- $secrets = append $secrets (dict "name" .name "secretName" .secretName "secretKey" (.secretKey | default "url")) -}}
{{- end -}}
{{- end -}}
{{- toYaml $secrets -}}
{{- end }}

{{/* Variables of members in a federation. */}}
{{- define "keyward.federationEnvironment" -}}
{{- $authorities := list -}}
{{- range .Values.federation.authorities -}}
{{- $authorities = append $authorities (printf "%s=%s" .name (.url | default (printf "@/etc/keyward/federation/authority-%s" .name))) -}}
{{- end -}}
KEYWARD_REGION: {{ .Values.federation.region | quote }}
KEYWARD_FEDERATION: /etc/keyward/federation/federation.yaml
{{- with $authorities }}
KEYWARD_AUTHORITY: {{ join "," . | quote }}
{{- end }}
{{- if include "keyward.regionsListen" . }}
KEYWARD_FEDERATION_LISTEN: ":7948"
{{- end }}
{{- end }}

{{/* The URI in the certificates of this region's members, which proves to coordinators which region they are, as a list. */}}
{{- define "keyward.regionURIs" -}}
{{- if .Values.federation.region -}}
- spiffe://{{ .Values.federation.layout.name }}/keyward/region/{{ .Values.federation.region }}
{{- else -}}
[]
{{- end -}}
{{- end }}

{{/* Errors about the federation, as a list. */}}
{{- define "keyward.federationFaults" -}}
{{- $faults := list -}}
{{- $f := .Values.federation -}}
{{- $c := .Values.coordinator -}}
{{- $mode := include "keyward.tlsMode" . -}}
{{- $coordinator := eq .Values.mode "coordinator" -}}
{{- if $coordinator -}}
{{- if ne .Values.preset "envoy" -}}
{{- $faults = append $faults (printf "mode coordinator has no gateway, and preset is %s: leave out preset" .Values.preset) -}}
{{- end -}}
{{- if or .Values.envoy.enabled .Values.autoscaling.enabled $f.region -}}
{{- $faults = append $faults "mode coordinator has no members: leave out envoy.enabled, autoscaling.enabled and federation.region" -}}
{{- end -}}
{{- if eq (empty $c.store.secretName) (not $c.store.memory) -}}
{{- $faults = append $faults "mode coordinator: set one of coordinator.store.secretName and coordinator.store.memory" -}}
{{- end -}}
{{- if and $c.store.memory (gt (int $c.replicas) 1) -}}
{{- $faults = append $faults (printf "coordinator.replicas is %d, and coordinator.store.memory needs 1: coordinators share a store, or each would lend the complete pool" (int $c.replicas)) -}}
{{- end -}}
{{- end -}}
{{- if include "keyward.federated" . -}}
{{- $names := list -}}
{{- range $f.layout.regions -}}{{- $names = append $names .name -}}{{- end -}}
{{- range $name := list "name" "coordinator" "regions" -}}
{{- if not (get $f.layout $name) -}}
{{- $faults = append $faults (printf "federation.layout.%s is missing" $name) -}}
{{- end -}}
{{- end -}}
{{- if ne (len $names) (len (uniq $names)) -}}
{{- $faults = append $faults (printf "federation.layout.regions: two regions have the same name: %s" (join ", " $names)) -}}
{{- end -}}
{{- if and (not $coordinator) (not (has $f.region $names)) -}}
{{- $faults = append $faults (printf "federation.region %q is not in federation.layout.regions, which has %s" $f.region (join ", " $names)) -}}
{{- end -}}
{{- $faults = concat $faults (fromYamlArray (include "keyward.authorityFaults" .)) -}}
{{- if and (eq .Values.preset "envoy-gateway") (not $coordinator) -}}
{{- $faults = append $faults "federation.region: Envoy Gateway runs the members, whose pods have no volume for the layout; use another preset" -}}
{{- end -}}
{{- $certificates := include "keyward.regionsListen" . -}}
{{- range $f.authorities -}}
{{- if hasPrefix "keyward://" (.url | default "") -}}{{- $certificates = "true" -}}{{- end -}}
{{- end -}}
{{- if and $certificates (or (eq $mode "generate") (and (eq $mode "cert-manager") (not .Values.tls.issuerRef))) -}}
{{- $faults = append $faults "port 7948 needs certificates of a CA that all regions share: set tls.issuerRef with cert-manager, or tls.mode to secret, or to off for a test" -}}
{{- end -}}
{{- end -}}
{{- if and $f.listen.enabled (not (include "keyward.federated" .)) -}}
{{- $faults = append $faults "federation.listen.enabled needs federation.region" -}}
{{- end -}}
{{- toYaml $faults -}}
{{- end }}

{{/* Errors in the list of coordinators, as a list. */}}
{{- define "keyward.authorityFaults" -}}
{{- $faults := list -}}
{{- range .Values.federation.authorities -}}
{{- if eq (empty .url) (empty .secretName) -}}
{{- $faults = append $faults (printf "federation.authorities: %s needs one of url and secretName" .name) -}}
{{- else if contains "@" (.url | default "") -}}
{{- $faults = append $faults (printf "federation.authorities: the url of %s has a password, which a ConfigMap would show: set secretName and secretKey" .name) -}}
{{- else if contains "," (.url | default "") -}}
{{- $faults = append $faults (printf "federation.authorities: the url of %s has a comma" .name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $faults -}}
{{- end }}
