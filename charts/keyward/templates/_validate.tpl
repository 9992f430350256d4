{{/* Fails if values contradict each other or rules have the wrong shape, and lists all errors at once. The schema checks the types of the values. */}}
{{- define "keyward.validate" -}}
{{- $faults := list -}}
{{- $a := .Values.autoscaling -}}
{{- if gt (int $a.minReplicas) (int $a.maxReplicas) -}}
{{- $faults = append $faults (printf "autoscaling.minReplicas is %d and autoscaling.maxReplicas %d: want the first to be at most the second" (int $a.minReplicas) (int $a.maxReplicas)) -}}
{{- end -}}
{{- if and .Values.networkPolicy.openToCluster .Values.networkPolicy.envoyFrom -}}
{{- $faults = append $faults "networkPolicy.openToCluster allows every pod, and networkPolicy.envoyFrom lists allowed peers: set one of them" -}}
{{- end -}}
{{- if and .Values.quota.enabled (eq .Values.preset "contour") -}}
{{- $faults = append $faults "quota.enabled: Contour cannot add a rate limit quota filter to its Envoys; use calls with preset contour" -}}
{{- end -}}
{{- if and .Values.quota.enabled (not (include "keyward.members" .)) -}}
{{- $faults = append $faults (printf "quota.enabled: mode %s has no members that Envoys could ask" .Values.mode) -}}
{{- end -}}
{{- if .Values.module.enabled -}}
{{- $faults = concat $faults (fromYamlArray (include "keyward.moduleFaults" .)) -}}
{{- end -}}
{{- $g := .Values.tls.generate -}}
{{- if ge (int $g.renewBeforeDays) (int $g.days) -}}
{{- $faults = append $faults (printf "tls.generate.renewBeforeDays is %d and tls.generate.days %d: want the first below the second" (int $g.renewBeforeDays) (int $g.days)) -}}
{{- end -}}
{{- $faults = concat $faults (fromYamlArray (include "keyward.secretFaults" .)) -}}
{{- $faults = concat $faults (fromYamlArray (include "keyward.federationFaults" .)) -}}
{{- if include "keyward.members" . -}}
{{- $faults = concat $faults (fromYamlArray (include "keyward.dataFaults" .)) -}}
{{- end -}}
{{- if not .Values.rulesConfigMap -}}
{{- range $file, $text := fromYaml (include "keyward.rules" .) -}}
{{- range fromYamlArray (include "keyward.rulesFaults" $text) -}}
{{- $faults = append $faults (printf "rules.%s: %s" $file .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "invalid values (keyward check RULES has more details about rules):\n* %s" (join "\n* " $faults)) -}}
{{- end -}}
{{- end }}

{{/* Errors about the dynamic module, as a list. */}}
{{- define "keyward.moduleFaults" -}}
{{- $faults := list -}}
{{- $m := .Values.module -}}
{{- if ne .Values.mode "sidecar" -}}
{{- $faults = append $faults (printf "module.enabled: Envoy spends leases of the sidecar in its own pod: with mode %s there is none, so set mode to sidecar" .Values.mode) -}}
{{- end -}}
{{- if .Values.quota.enabled -}}
{{- $faults = append $faults "quota.enabled and module.enabled are two ways to spend limits without calls, and the demo Envoy has one of them: set one" -}}
{{- end -}}
{{- if and (not .Values.envoy.config) (not (regexMatch "^v?1\\.40(\\.|$)" $m.envoyVersion)) -}}
{{- $faults = append $faults (printf "module.envoyVersion is %s, and the demo Envoy's configuration is for 1.40: set envoy.image, and envoy.config to the output of keyward envoy-config --shape module --envoy-version %s" $m.envoyVersion $m.envoyVersion) -}}
{{- end -}}
{{- toYaml $faults -}}
{{- end }}

{{/* Errors about the volume of journals, as a list. */}}
{{- define "keyward.dataFaults" -}}
{{- $faults := list -}}
{{- $d := .Values.data -}}
{{- $members := include "keyward.ownPods" . -}}
{{- $claims := and $members (eq .Values.mode "deployment") (eq .Values.workload "StatefulSet") -}}
{{- if lt (include "keyward.dataMiB" . | int64) 128 -}}
{{- $faults = append $faults (printf "data.size is %s: want at least 128Mi" $d.size) -}}
{{- end -}}
{{- if and (eq $d.volume "pvc") (not $claims) -}}
{{- if and $members (eq .Values.mode "deployment") -}}
{{- $faults = append $faults "data.volume pvc needs workload StatefulSet: the pods of a Deployment have no claims of their own, so set workload to StatefulSet, or data.volume to emptyDir" -}}
{{- else -}}
{{- $faults = append $faults (printf "data.volume pvc: with %s, the members are not in a StatefulSet of this chart, so they have no claims; set data.volume to emptyDir%s" (ternary (printf "mode %s" .Values.mode) (printf "preset %s" .Values.preset) (ne .Values.mode "deployment")) (ternary "" ", or hostPath" (eq .Values.preset "envoy-gateway"))) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $d.volume "hostPath") (or (eq .Values.mode "deployment") (eq .Values.preset "envoy-gateway")) -}}
{{- $faults = append $faults (printf "data.volume hostPath is for the modes daemonset and sidecar: with %s, a pod that moves to another node would leave its journal behind; set data.volume to %s" (ternary "preset envoy-gateway" "mode deployment" (eq .Values.preset "envoy-gateway")) (ternary "pvc" "emptyDir" (not (empty $claims)))) -}}
{{- end -}}
{{- if $claims -}}
{{- $name := include "keyward.fullname" . -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if ne (eq $d.volume "pvc") (not (empty .spec.volumeClaimTemplates)) -}}
{{- $faults = append $faults (printf "data.volume is %s, and Kubernetes cannot add claims to the existing StatefulSet %s, or remove them: run kubectl -n %s delete statefulset %s --cascade=orphan, which keeps the pods, then this command again (charts/keyward/README.md, Journals)" $d.volume $name $.Release.Namespace $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $faults -}}
{{- end }}

{{/* Errors about missing Secrets of tls.mode secret, as a list. Only members may have theirs, because a process with it can act as a member. */}}
{{- define "keyward.secretFaults" -}}
{{- $faults := list -}}
{{- $t := .Values.tls -}}
{{- if eq $t.mode "secret" -}}
{{- $what := "the Secret (tls.crt, tls.key, ca.crt) of" -}}
{{- if not $t.existingSecret -}}
{{- $faults = append $faults (printf "tls.mode secret: set tls.existingSecret, %s the %s" $what (ternary "members" "coordinator" (not (empty (include "keyward.members" $))))) -}}
{{- end -}}
{{- if and (include "keyward.xds" .) (not $t.xdsSecret) -}}
{{- $faults = append $faults (printf "tls.mode secret: set tls.xdsSecret, %s the xDS servers" $what) -}}
{{- end -}}
{{- if and (include "keyward.needsEnvoySecret" .) (not $t.envoySecret) -}}
{{- $faults = append $faults (printf "tls.mode secret: set tls.envoySecret, %s Envoys, which is also used by helm test and by gateways that verify the members' certificate" $what) -}}
{{- end -}}
{{- range $value := list "xdsSecret" "envoySecret" -}}
{{- if and $t.existingSecret (eq (get $t $value) $t.existingSecret) -}}
{{- $faults = append $faults (printf "tls.%s and tls.existingSecret are both %s: a process with the members' certificate can act as a member, so use a certificate without their name" $value $t.existingSecret) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $faults -}}
{{- end }}

{{/* "true" if an object of the chart uses the Secret of Envoys. */}}
{{- define "keyward.needsEnvoySecret" -}}
{{- if or .Values.envoy.enabled (include "keyward.testSecret" .) (and (eq .Values.preset "contour") .Values.service.tls) }}true{{ end -}}
{{- end }}

{{/* Errors in the shape of a file of rules, as a list. */}}
{{- define "keyward.rulesFaults" -}}
{{- $faults := list -}}
{{- $doc := fromYaml . -}}
{{- if hasKey $doc "Error" -}}
{{- $faults = append $faults (printf "cannot read YAML: %s" $doc.Error) -}}
{{- else -}}
{{- if not (and (kindIs "string" $doc.domain) $doc.domain) -}}
{{- $faults = append $faults "domain: want a string" -}}
{{- end -}}
{{- $faults = concat $faults (fromYamlArray (include "keyward.descriptorFaults" (dict "list" $doc.descriptors "path" "descriptors"))) -}}
{{- end -}}
{{- toYaml $faults -}}
{{- end }}

{{/* Errors in a list of descriptors: dict list, path. */}}
{{- define "keyward.descriptorFaults" -}}
{{- $faults := list -}}
{{- $path := .path -}}
{{- if kindIs "slice" .list -}}
{{- range $i, $d := .list -}}
{{- $at := printf "%s[%d]" $path $i -}}
{{- if kindIs "map" $d -}}
{{- if not (and (kindIs "string" $d.key) $d.key) -}}
{{- $faults = append $faults (printf "%s.key: want a string" $at) -}}
{{- end -}}
{{- $faults = concat $faults (fromYamlArray (include "keyward.limitFaults" (dict "limit" $d.rate_limit "path" (printf "%s.rate_limit" $at)))) -}}
{{- $faults = concat $faults (fromYamlArray (include "keyward.descriptorFaults" (dict "list" $d.descriptors "path" (printf "%s.descriptors" $at)))) -}}
{{- else -}}
{{- $faults = append $faults (printf "%s: want a mapping with a key, not %v" $at $d) -}}
{{- end -}}
{{- end -}}
{{- else if not (kindIs "invalid" .list) -}}
{{- $faults = append $faults (printf "%s: want a list, not %v" $path .list) -}}
{{- end -}}
{{- toYaml $faults -}}
{{- end }}

{{/* Errors in a rate_limit: dict limit, path. */}}
{{- define "keyward.limitFaults" -}}
{{- $faults := list -}}
{{- $path := .path -}}
{{- if kindIs "map" .limit -}}
{{- range $name, $kinds := dict "unit" (list "string") "requests_per_unit" (list "float64" "int64" "int") "unlimited" (list "bool") -}}
{{- $v := get $.limit $name -}}
{{- if and (hasKey $.limit $name) (not (has (kindOf $v) $kinds)) -}}
{{- $faults = append $faults (printf "%s.%s: want a %s, not %v" $path $name (get (dict "string" "string" "float64" "number" "bool" "boolean") (first $kinds)) $v) -}}
{{- end -}}
{{- end -}}
{{- else if not (kindIs "invalid" .limit) -}}
{{- $faults = append $faults (printf "%s: want a mapping with unit and requests_per_unit, not %v" $path .limit) -}}
{{- end -}}
{{- toYaml $faults -}}
{{- end }}
