{{/*
The Keyward sidecar for the pods of your own chart. A release of the chart "keyward" in the same namespace
(mode: sidecar) provides the shared objects: rules, gossip key, certificates and the environment. Example:

  template:
    metadata:
      labels:
        {{- include "keyward.sidecar.labels" (dict "release" "keyward") | nindent 8 }}
    spec:
      terminationGracePeriodSeconds: 60
      initContainers:
        {{- include "keyward.sidecar" (dict "release" "keyward") | nindent 8 }}
        - name: envoy          # a native sidecar after Keyward's: it starts later and stops earlier
      volumes:
        {{- include "keyward.sidecar.volumes" (dict "release" "keyward") | nindent 8 }}

Each takes a dict:
  release         full name of the release's objects            default keyward
  image           image of the sidecar                          default ghcr.io/keyward/keyward:v<appVersion>
  pullPolicy      its imagePullPolicy                           default IfNotPresent
  resources       its resources                                 default requests of 20m CPU and 64Mi, limit of 256Mi memory
  tls             false if the release has tls.mode off       default true
  gossipSecret    Secret with gossip.key                        default <release>-gossip
  tlsSecret       Secret with tls.crt, tls.key, ca.crt          default <release>-tls
  rulesConfigMap  ConfigMap with the rules                      default <release>-rules
  federationConfigMap  ConfigMap with federation.yaml, <release>-federation if the release has federation.region   default none
  authoritySecrets     list of {name, secretName, secretKey}: coordinators whose URL is in a Secret
  federationPort       true if the release has federation.listen
  envoyAdmin      host:port of the admin interface of the pod's Envoy, which drains when the pod stops
  dataVolume      where the journal is: emptyDir, hostPath, claim (of the pod's StatefulSet, named keyward-data) or none   default emptyDir
  dataSize        sizeLimit of the emptyDir                     default 2Gi
  dataPath        directory of the node, with hostPath          default /var/lib/keyward
  moduleEnvoy     version of the pod's Envoy, such as "1.40", that spends leases with the dynamic module; see "keyward.module"   default none
  moduleImage     image with the module's files               default ghcr.io/keyward/keyward-module:v<appVersion>
  args            list of additional flags of the sidecar
  env             list of additional variables
  volumeMounts    list of additional mounts
*/}}
{{- define "keyward.sidecar" -}}
- name: keyward
  restartPolicy: Always
{{ include "keyward.container" . | indent 2 }}
{{- end }}

{{/*
The init container that copies the dynamic module's file for moduleEnvoy into the volume of "keyward.module.mounts", for the
Envoy of a pod with the sidecar. Envoy's container also needs "keyward.module.env". Example, with the same dict everywhere:

  {{- $keyward := dict "release" "keyward" "moduleEnvoy" "1.40" "moduleImage" "registry.example/keyward-module:v1" }}
      initContainers:
        {{- include "keyward.module" $keyward | nindent 8 }}
        {{- include "keyward.sidecar" $keyward | nindent 8 }}
        - name: envoy
          env:
            {{- include "keyward.module.env" $keyward | nindent 12 }}
          volumeMounts:
            {{- include "keyward.module.mounts" $keyward | nindent 12 }}
      volumes:
        {{- include "keyward.sidecar.volumes" $keyward | nindent 8 }}
*/}}
{{- define "keyward.module" -}}
{{- if not (kindIs "string" .moduleEnvoy) }}{{ fail "keyward-lib: moduleEnvoy: want a version in quotes, because YAML reads 1.40 as 1.4" }}{{ end -}}
- name: keyward-module
  image: {{ .moduleImage | default (printf "ghcr.io/keyward/keyward-module:v%s" "0.1.0") }}
  imagePullPolicy: {{ .pullPolicy | default "IfNotPresent" }}
  command: [/bin/keyward, module, --envoy, {{ .moduleEnvoy | quote }}, --to, /modules]
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 64Mi}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    - {name: keyward-modules, mountPath: /modules}
{{- end }}

{{/* The directory in which Envoy looks for dynamic modules, as a list of variables. */}}
{{- define "keyward.module.env" -}}
- {name: ENVOY_DYNAMIC_MODULES_SEARCH_PATH, value: /modules}
{{- end }}

{{/*
Mounts of Envoy: the module's file, and the sidecar's socket at the default path of keyward envoy-config --shape module. Envoy does
not see the sidecar's /run/keyward, because the admin socket there takes orders.
*/}}
{{- define "keyward.module.mounts" -}}
- {name: keyward-modules, mountPath: /modules, readOnly: true}
- {name: keyward-module, mountPath: /run/keyward, readOnly: true}
{{- end }}

{{/* Labels of a pod with the sidecar. Members find each other by the first one. */}}
{{- define "keyward.sidecar.labels" -}}
keyward.io/member: {{ .release | default "keyward" }}
{{- end }}

{{/* Volumes that the sidecar mounts. */}}
{{- define "keyward.sidecar.volumes" -}}
{{- $release := .release | default "keyward" -}}
- name: keyward-rules
  configMap: {name: {{ .rulesConfigMap | default (printf "%s-rules" $release) }}}
- name: keyward-gossip
  secret: {secretName: {{ .gossipSecret | default (printf "%s-gossip" $release) }}}
{{- if ne .tls false }}
- name: keyward-tls
  secret: {secretName: {{ .tlsSecret | default (printf "%s-tls" $release) }}}
{{- end }}
{{- with .federationConfigMap }}
- name: keyward-federation # the layout, and URLs of coordinators
  projected:
    sources:
      - configMap: {name: {{ . }}}
      {{- range $.authoritySecrets }}
      - secret:
          name: {{ .secretName }}
          items: [{key: {{ .secretKey }}, path: authority-{{ .name }}}]
      {{- end }}
{{- end }}
- name: keyward-run # admin socket for keyward drain
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- if .moduleEnvoy }}
- name: keyward-module # socket for the dynamic module
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: keyward-modules # the dynamic module's file
  emptyDir: {sizeLimit: 64Mi}
{{- end }}
{{- $data := .dataVolume | default "emptyDir" }}
{{- if eq $data "emptyDir" }}
- name: keyward-data # the journal, which outlives the processes of the pod
  emptyDir: {sizeLimit: {{ .dataSize | default "2Gi" }}}
{{- else if eq $data "hostPath" }}
- name: keyward-data # the journal, which outlives the pod; the directory belongs to user 65532
  hostPath: {path: {{ .dataPath | default "/var/lib/keyward" }}, type: Directory}
{{- end }}
{{- end }}

{{/* The container without its name, for a native sidecar and for separate pods. */}}
{{- define "keyward.container" -}}
{{- $release := .release | default "keyward" -}}
{{- $resources := .resources | default (dict "requests" (dict "cpu" "20m" "memory" "64Mi") "limits" (dict "memory" "256Mi")) -}}
image: {{ .image | default (printf "ghcr.io/keyward/keyward:v%s" "0.1.0") }}
imagePullPolicy: {{ .pullPolicy | default "IfNotPresent" }}
command: [/bin/sidecar]
{{- with .args }}
args:
  {{- toYaml . | nindent 2 }}
{{- end }}
envFrom:
  - configMapRef: {name: {{ $release }}-member}
env:
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  {{- with dig "limits" "memory" "" $resources }}
  - {name: GOMEMLIMIT, value: {{ include "keyward.goMemLimit" . }}} # nine tenths of the container's limit
  {{- end }}
  {{- if ne .dataVolume "none" }}
  - {name: KEYWARD_DATA, value: /var/lib/keyward}
  {{- end }}
  {{- if .moduleEnvoy }}
  - {name: KEYWARD_MODULE_SOCKET, value: /run/keyward-module/module.sock}
  - {name: KEYWARD_MODULE_SOCKET_MODE, value: "0666"} # for Envoy's user; only containers that mount the volume reach it
  {{- end }}
  {{- with .env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  {{- range .ports }}
  - {{ toYaml . | nindent 4 | trim }}
  {{- end }}
  - {name: keyward-rls, containerPort: 8082}
  - {name: keyward-gossip, containerPort: 7946}
  - {name: keyward-udp, containerPort: 7946, protocol: UDP}
  - {name: keyward-peer, containerPort: 7947}
  {{- if .federationPort }}
  - {name: keyward-regions, containerPort: 7948}
  {{- end }}
  - {name: keyward-metrics, containerPort: 9090}
# Succeeds when the member is on the ring, or after 30 s without the others; later containers of the pod wait for it.
startupProbe:
  httpGet: {path: /readyz, port: 9090}
  periodSeconds: 1
  failureThreshold: 90
readinessProbe:
  httpGet: {path: /readyz, port: 9090}
  periodSeconds: 2
  timeoutSeconds: 3 # tolerate a busy node
livenessProbe:
  httpGet: {path: /healthz, port: 9090}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 6
lifecycle:
  preStop: # hands off its counters before Envoy stops; it answers until Envoy has stopped
    exec: {command: [/bin/keyward, drain{{ with .envoyAdmin }}, --envoy, "{{ . }}"{{ end }}]}
resources:
  {{- toYaml $resources | nindent 2 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: keyward-rules, mountPath: /data/ratelimit/config, readOnly: true}
  - {name: keyward-gossip, mountPath: /etc/keyward/gossip, readOnly: true}
  {{- if ne .tls false }}
  - {name: keyward-tls, mountPath: /etc/keyward/tls, readOnly: true}
  {{- end }}
  {{- if .federationConfigMap }}
  - {name: keyward-federation, mountPath: /etc/keyward/federation, readOnly: true}
  {{- end }}
  - {name: keyward-run, mountPath: /run/keyward}
  {{- if .moduleEnvoy }}
  - {name: keyward-module, mountPath: /run/keyward-module}
  {{- end }}
  {{- if ne .dataVolume "none" }}
  - {name: keyward-data, mountPath: /var/lib/keyward}
  {{- end }}
  {{- with .volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Nine tenths of a memory limit, as Go's GOMEMLIMIT: the rest is for memory that the runtime does not count. */}}
{{- define "keyward.goMemLimit" -}}
{{- $text := toString . -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "K" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- if and $unit (not (hasKey $units $unit)) }}{{ fail (printf "memory limit %s: want a number with Ki, Mi or Gi" $text) }}{{ end -}}
{{- printf "%dMiB" (int64 (divf (mulf (float64 $number) (get $units $unit | default 1) 0.9) 1048576)) -}}
{{- end }}
