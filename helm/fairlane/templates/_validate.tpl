{{/* Combinations of values that cannot work. All of them are told at once. */}}

{{- define "fairlane.validate" -}}
{{- $problems := list -}}
{{- $config := .Values.config -}}
{{- $nats := default dict $config.nats -}}
{{- $claude := default dict $config.claude -}}
{{- $worker := default dict $config.worker -}}

{{- if not .Values.image.repository -}}
  {{- $problems = append $problems "image.repository is not set: there is no public image; build and push one, see deploy/README.md" -}}
{{- end -}}

{{- if eq .Values.environment "production" -}}
  {{- range list "devNats" "simulator" -}}
    {{- if (get $.Values .).enabled -}}
      {{- $problems = append $problems (printf "%s.enabled is for trying out and environment is production: switch one of them off" .) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- if .Values.devNats.enabled -}}
  {{- if $nats.url -}}
    {{- $problems = append $problems "config.nats.url and devNats.enabled exclude each other: the chart sets the address of its own NATS" -}}
  {{- end -}}
  {{- if .Values.secrets.natsCreds.existingSecret -}}
    {{- $problems = append $problems "secrets.natsCreds.existingSecret and devNats.enabled exclude each other: devNats has no login" -}}
  {{- end -}}
  {{- if gt (int (default 1 $nats.replicas)) 1 -}}
    {{- $problems = append $problems (printf "config.nats.replicas is %d and devNats is one server: leave it at 1" (int $nats.replicas)) -}}
  {{- end -}}
{{- else if not $nats.url -}}
  {{- $problems = append $problems "config.nats.url is not set: give the address of your NATS, such as nats://nats.nats:4222, or set devNats.enabled to try Fairlane out" -}}
{{- end -}}

{{- if .Values.simulator.enabled -}}
  {{- if $claude.base_url -}}
    {{- $problems = append $problems "config.claude.base_url and simulator.enabled exclude each other: the chart sets the address of its simulator" -}}
  {{- end -}}
  {{- if .Values.secrets.claudeApiKey.existingSecret -}}
    {{- $problems = append $problems "secrets.claudeApiKey.existingSecret and simulator.enabled exclude each other: the simulator takes any key" -}}
  {{- end -}}
{{- else if not .Values.secrets.claudeApiKey.existingSecret -}}
  {{- $problems = append $problems "secrets.claudeApiKey.existingSecret is not set: name a Secret that holds the API key, or set simulator.enabled to try Fairlane out" -}}
{{- end -}}

{{- range $key, $instead := dict
    "claude.api_key" "it would be readable in a ConfigMap; use secrets.claudeApiKey"
    "claude.api_key_file" "the chart sets it; use secrets.claudeApiKey"
    "nats.creds_file" "the chart sets it; use secrets.natsCreds"
    "nats.password" "it would be readable in a ConfigMap; use extraEnv.FAIRLANE__NATS__PASSWORD with a secretKeyRef"
    "producer.http_addr" "the chart sets it; use http.host and http.port"
    "scheduler.http_addr" "the chart sets it; use http.host and http.port"
    "worker.http_addr" "the chart sets it; use http.host and http.port" -}}
  {{- $parts := splitList "." $key -}}
  {{- $section := default dict (get $config (index $parts 0)) -}}
  {{- if not (kindIs "invalid" (get $section (index $parts 1) | default nil)) -}}
    {{- $problems = append $problems (printf "config.%s is refused: %s" $key $instead) -}}
  {{- end -}}
{{- end -}}

{{- if kindIs "invalid" $worker.drain_ms -}}
  {{- $problems = append $problems "config.worker.drain_ms is not set: the grace period of the workers follows from it" -}}
{{- end -}}

{{- range $name := list "producer" "scheduler" "worker" -}}
  {{- $component := fromYaml (include "fairlane.component" (dict "root" $ "component" $name)) -}}
  {{- $explicit := $component.terminationGracePeriodSeconds -}}
  {{- if not (kindIs "invalid" $explicit) -}}
    {{- $min := int64 (include "fairlane.graceMin" (dict "root" $ "component" $name)) -}}
    {{- if lt (int64 $explicit) $min -}}
      {{- $why := ternary "config.worker.drain_ms / 1000 + 15" "the longest end of that role" (eq $name "worker") -}}
      {{- $problems = append $problems (printf "%s.terminationGracePeriodSeconds is %d and must be at least %d (%s): pods would be killed at work" $name (int64 $explicit) $min $why) -}}
    {{- end -}}
  {{- end -}}
  {{- range $variable, $value := $component.extraEnv -}}
    {{- if or (eq $variable "FAIRLANE_NATS_URL") (and (hasPrefix "FAIRLANE__" $variable) (not (has $variable (list "FAIRLANE__NATS__USER" "FAIRLANE__NATS__PASSWORD")))) -}}
      {{- $problems = append $problems (printf "%s.extraEnv.%s is refused: it would win over the configuration that the chart knows; use config, or secrets" $name $variable) -}}
    {{- end -}}
  {{- end -}}
  {{- range $component.extraVolumes -}}
    {{- if has .name (list "config" "claude-api-key" "nats-creds") -}}
      {{- $problems = append $problems (printf "%s.extraVolumes: the name %s belongs to the chart" $name .name) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- with $problems -}}
  {{- fail (printf "these values cannot work:\n  - %s" (join "\n  - " .)) -}}
{{- end -}}
{{- end -}}
