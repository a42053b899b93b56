{{/* Names, labels and the merging of defaults. */}}

{{/*
The common part of all names. Services need names that start with a letter, and no name may pass 63 characters with
the longest suffix; a long one is cut and keeps a digest, so that two long release names stay apart.
*/}}
{{- define "fairlane.fullname" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
  {{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- end -}}
{{- $name = $name | replace "." "-" -}}
{{- if not (regexMatch "^[a-z]" $name) -}}
  {{- $name = printf "fairlane-%s" $name -}}
{{- end -}}
{{- if gt (len $name) 45 -}}
  {{- $name = printf "%s-%s" ($name | trunc 36 | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- end -}}
{{- $name | trimSuffix "-" -}}
{{- end -}}

{{/* What selects the pods of one component; never changes during the life of a release. Takes root and component. */}}
{{- define "fairlane.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . | quote }}
{{- end }}
{{- end -}}

{{/*
Labels of pods: without the chart's version, so that a new chart alone restarts nothing. Takes root, component and
extra (a map or nothing).
*/}}
{{- define "fairlane.podLabels" -}}
{{ include "fairlane.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: "fairlane"
{{- $extra := dict -}}
{{- include "fairlane.overlay" (list $extra .root.Values.commonLabels) -}}
{{- include "fairlane.overlay" (list $extra .extra) -}}
{{- include "fairlane.quoted" $extra -}}
{{- end -}}

{{/* Labels of objects. Takes the same. */}}
{{- define "fairlane.labels" -}}
{{ include "fairlane.podLabels" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* Entries of a map of texts, each value quoted, each on a line of its own. */}}
{{- define "fairlane.quoted" -}}
{{- range $key, $value := . }}
{{ $key | quote }}: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* metadata of an object. Takes root, component, suffix and extra. */}}
{{- define "fairlane.metadata" -}}
name: {{ printf "%s-%s" (include "fairlane.fullname" .root) .suffix | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "fairlane.labels" . | nindent 2 }}
{{- end -}}

{{/*
Puts the second map over the first, in place: maps merge, everything else is replaced. Unlike mergeOverwrite it also
takes false, 0, the empty text and null for an answer.
*/}}
{{- define "fairlane.overlay" -}}
{{- $base := index . 0 -}}
{{- range $key, $value := index . 1 -}}
  {{- if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
    {{- include "fairlane.overlay" (list (get $base $key) $value) -}}
  {{- else -}}
    {{- $_ := set $base $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* The settings of one role, as YAML. Takes root and component. */}}
{{- define "fairlane.component" -}}
{{- $settings := deepCopy .root.Values.defaults -}}
{{- include "fairlane.overlay" (list $settings (get .root.Values .component)) -}}
{{- toYaml $settings -}}
{{- end -}}

{{/*
Seconds a role needs to end: its own grace, and 15 to send the last traces and be killed by nobody. Schedulers hold
nothing for longer than 10 seconds. Takes root and component.
*/}}
{{- define "fairlane.graceMin" -}}
{{- if has .component (list "producer" "worker") -}}
  {{- $role := default dict (get .root.Values.config .component) -}}
  {{- add (div (add (int64 $role.drain_ms) 999) 1000) 15 -}}
{{- else -}}
  {{- 25 -}}
{{- end -}}
{{- end -}}

{{- define "fairlane.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What all pods have in common, as fields of the pod's spec. */}}
{{- define "fairlane.podCommon" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The port of an address: its own, or that of its scheme. */}}
{{- define "fairlane.urlPort" -}}
{{- $scheme := regexFind "^[a-z]+" . -}}
{{- $authority := trimPrefix (printf "%s://" $scheme) . | regexFind "^[^/]*" -}}
{{- $own := regexFind ":[0-9]+$" $authority -}}
{{- if $own -}}
{{- trimPrefix ":" $own -}}
{{- else -}}
{{- get (dict "nats" "4222" "tls" "4222" "ws" "80" "wss" "443" "http" "80" "https" "443") $scheme -}}
{{- end -}}
{{- end -}}

{{/* Jobs that a worker runs at once: what the programs take, and what pods are counted by. */}}
{{- define "fairlane.slots" -}}
{{- $worker := default dict .Values.config.worker -}}
{{- int (default 64 $worker.slots) -}}
{{- end -}}

{{/* Environment: a map of texts or sources, as a list. */}}
{{- define "fairlane.env" -}}
{{- range $variable, $value := . }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $variable | quote }}
  {{- if kindIs "map" $value }}
  {{- toYaml $value | nindent 2 }}
  {{- else }}
  value: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where a role, or the operator, finds its configuration and secrets. Takes root and component. */}}
{{- define "fairlane.mounts" -}}
- {name: config, mountPath: /etc/fairlane/fairlane.toml, subPath: fairlane.toml, readOnly: true}
{{- if and (eq .component "worker") .root.Values.secrets.claudeApiKey.existingSecret }}
- {name: claude-api-key, mountPath: /etc/fairlane/claude, readOnly: true}
{{- end }}
{{- if or .root.Values.secrets.natsCreds.existingSecret .root.Values.secrets.natsKeys.existingSecret }}
- {name: nats-creds, mountPath: /etc/fairlane/nats, readOnly: true}
{{- end }}
{{- if .root.Values.secrets.natsCa.existingSecret }}
- {name: nats-ca, mountPath: /etc/fairlane/nats-ca, readOnly: true}
{{- end }}
{{- if and (has .component (list "producer" "scheduler")) .root.Values.secrets.apiTokens.existingSecret }}
- {name: api-tokens, mountPath: /etc/fairlane/api, readOnly: true}
{{- end }}
{{- if and (has .component (list "producer" "scheduler")) .root.Values.api.operators }}
- {name: operator-key, mountPath: /etc/fairlane/operator, readOnly: true}
{{- end }}
{{- if and (eq .component "producer") .root.Values.api.enabled .root.Values.secrets.apiTls.existingSecret }}
- {name: api-tls, mountPath: /etc/fairlane/api-tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* The volumes of these mounts. */}}
{{- define "fairlane.volumes" -}}
- name: config
  configMap:
    name: {{ printf "%s-config" (include "fairlane.fullname" .root) | quote }}
{{- with .root.Values.secrets.claudeApiKey }}
{{- if and (eq $.component "worker") .existingSecret }}
{{- include "fairlane.secretVolume" (dict "name" "claude-api-key" "secret" .existingSecret "key" .key "path" .key) }}
{{- end }}
{{- end }}
{{- with .root.Values.secrets.natsCreds }}
{{- if .existingSecret }}
{{- include "fairlane.secretVolume" (dict "name" "nats-creds" "secret" .existingSecret "key" .key "path" .key) }}
{{- end }}
{{- end }}
{{- with .root.Values.secrets.natsKeys }}
{{- if .existingSecret }}
{{- include "fairlane.secretVolume" (dict "name" "nats-creds" "secret" .existingSecret "key" (get .keys $.component) "path" "user.nk") }}
{{- end }}
{{- end }}
{{- with .root.Values.secrets.natsCa }}
{{- if .existingSecret }}
{{- include "fairlane.secretVolume" (dict "name" "nats-ca" "secret" .existingSecret "key" .key "path" .key) }}
{{- end }}
{{- end }}
{{- if has .component (list "producer" "scheduler") }}
{{- with .root.Values.secrets.apiTokens }}
{{- if .existingSecret }}
{{- include "fairlane.secretVolume" (dict "name" "api-tokens" "secret" .existingSecret "key" .key "path" .key) }}
{{- end }}
{{- end }}
{{- if .root.Values.api.operators }}
{{- with .root.Values.secrets.natsKeys }}
{{- include "fairlane.secretVolume" (dict "name" "operator-key" "secret" .existingSecret "key" .keys.operator "path" "operator.nk") }}
{{- end }}
{{- end }}
{{- end }}
{{- with .root.Values.secrets.apiTls }}
{{- if and (eq $.component "producer") $.root.Values.api.enabled .existingSecret }}
- name: api-tls
  secret:
    secretName: {{ .existingSecret | quote }}
    defaultMode: 0440
    items: [{key: "tls.crt", path: "tls.crt"}, {key: "tls.key", path: "tls.key"}]
{{- end }}
{{- end }}
{{- end -}}

{{- define "fairlane.secretVolume" }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: 0440
    items: [{key: {{ .key | quote }}, path: {{ .path | quote }}}]
{{- end -}}
