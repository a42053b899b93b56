{{/* The configuration file: what the user wrote and what the chart knows, as TOML. */}}

{{- define "fairlane.config" -}}
{{- $fullname := include "fairlane.fullname" . -}}
{{- $host := ternary (printf "[%s]" .Values.http.host) .Values.http.host (contains ":" .Values.http.host) -}}
{{- $address := printf "%s:%d" $host (int .Values.http.port) -}}
{{- $config := dict -}}
{{- include "fairlane.overlay" (list $config (deepCopy .Values.config)) -}}
{{- range list "nats" "claude" "producer" "scheduler" "worker" -}}
  {{- if not (get $config .) -}}{{- $_ := set $config . dict -}}{{- end -}}
{{- end -}}
{{- range list "producer" "scheduler" "worker" -}}
  {{- $_ := set (get $config .) "http_addr" $address -}}
{{- end -}}
{{- if .Values.devNats.enabled -}}
  {{- $_ := set $config.nats "url" (printf "nats://%s-nats:4222" $fullname) -}}
{{- end -}}
{{- if .Values.secrets.natsCreds.existingSecret -}}
  {{- $_ := set $config.nats "creds_file" (printf "/etc/fairlane/nats/%s" .Values.secrets.natsCreds.key) -}}
{{- end -}}
{{- if .Values.secrets.natsKeys.existingSecret -}}
  {{- $_ := set $config.nats "nkey_file" "/etc/fairlane/nats/user.nk" -}}
{{- end -}}
{{- if .Values.secrets.natsCa.existingSecret -}}
  {{- $_ := set $config.nats "tls_ca_file" (printf "/etc/fairlane/nats-ca/%s" .Values.secrets.natsCa.key) -}}
{{- end -}}
{{- if .Values.api.enabled -}}
  {{- $_ := set $config.producer "api_addr" (printf "%s:%d" $host (int .Values.api.port)) -}}
  {{- if .Values.secrets.apiTls.existingSecret -}}
    {{- $_ := set $config.producer "api_tls_cert_file" "/etc/fairlane/api-tls/tls.crt" -}}
    {{- $_ := set $config.producer "api_tls_key_file" "/etc/fairlane/api-tls/tls.key" -}}
  {{- end -}}
{{- end -}}
{{- if .Values.secrets.apiTokens.existingSecret -}}
  {{- $tokens := printf "/etc/fairlane/api/%s" .Values.secrets.apiTokens.key -}}
  {{- $_ := set $config.producer "api_tokens_file" $tokens -}}
  {{- $_ := set $config.scheduler "console_tokens_file" $tokens -}}
{{- end -}}
{{- if .Values.api.operators -}}
  {{- range list $config.producer $config.scheduler -}}
    {{- $_ := set . "operator_nkey_file" "/etc/fairlane/operator/operator.nk" -}}
  {{- end -}}
{{- end -}}
{{- with .Values.autoscaling -}}
  {{- if ne .mode "none" -}}
    {{- $slots := int (include "fairlane.slots" $) -}}
    {{- $bounds := dict "slots_min" (mul .minReplicas $slots) "slots_max" (mul .maxReplicas $slots) -}}
    {{- $autoscale := default dict $config.scheduler.autoscale -}}
    {{- include "fairlane.overlay" (list $autoscale $bounds) -}}
    {{- $_ := set $config.scheduler "autoscale" $autoscale -}}
  {{- end -}}
{{- end -}}
{{- if .Values.simulator.enabled -}}
  {{- $_ := set $config.claude "base_url" (printf "http://%s-simulator:9000" $fullname) -}}
  {{- $_ := set $config.claude "api_key" "simulator" -}}
{{- else -}}
  {{- $_ := set $config.claude "api_key_file" (printf "/etc/fairlane/claude/%s" .Values.secrets.claudeApiKey.key) -}}
{{- end -}}
# Written by helm from .Values.config; `fairlane config show` prints it with all defaults.
{{- include "fairlane.toml" (dict "table" $config "path" list) }}
{{ end -}}

{{/*
One table: its own keys first, as TOML wants, then the tables in it. Null means not set. A text or number as JSON writes
it is also one in TOML, and whole numbers, which arrive from a values file as floating point, leave as whole ones;
toToml would make 5.0 of 5, which the programs refuse.
*/}}
{{- define "fairlane.toml" -}}
{{- $path := .path -}}
{{- if $path }}

[{{ join "." $path }}]
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "slice" $value }}
{{- fail (printf "these values cannot work:\n  - config.%s is a list; no key of the configuration takes one" (join "." (append $path $key))) }}
{{- end }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "fairlane.tomlKey" $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- include "fairlane.toml" (dict "table" $value "path" (append $path (include "fairlane.tomlKey" $key))) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Names with dots, such as sonnet-4.x, must be quoted, or they would be two names. */}}
{{- define "fairlane.tomlKey" -}}
{{- ternary . (toJson .) (regexMatch "^[A-Za-z0-9_-]+$" .) -}}
{{- end -}}
