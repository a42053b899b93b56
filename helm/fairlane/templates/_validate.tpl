{{/* Combinations of values that cannot work. All of them are told at once. */}}

{{- define "fairlane.validate" -}}
{{- $problems := list -}}
{{- $config := .Values.config -}}
{{- $nats := default dict $config.nats -}}
{{- $claude := default dict $config.claude -}}

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
  {{- range list "natsCreds" "natsKeys" "natsCa" -}}
    {{- if (get $.Values.secrets .).existingSecret -}}
      {{- $problems = append $problems (printf "secrets.%s.existingSecret and devNats.enabled exclude each other: devNats has no login" .) -}}
    {{- end -}}
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

{{- if and .Values.secrets.natsCreds.existingSecret .Values.secrets.natsKeys.existingSecret -}}
  {{- $problems = append $problems "secrets.natsCreds.existingSecret and secrets.natsKeys.existingSecret exclude each other: log in in one way" -}}
{{- end -}}

{{- with .Values.autoscaling -}}
  {{- if ne .mode "none" -}}
    {{- if gt (int .minReplicas) (int .maxReplicas) -}}
      {{- $problems = append $problems (printf "autoscaling.minReplicas is %d and autoscaling.maxReplicas is %d: the first must not be larger" (int .minReplicas) (int .maxReplicas)) -}}
    {{- end -}}
    {{- if and (eq .mode "hpa") (lt (int .minReplicas) 1) -}}
      {{- $problems = append $problems "autoscaling.minReplicas is 0 and autoscaling.mode is hpa: only keda scales to none" -}}
    {{- end -}}
    {{- if hasKey $.Values.worker "replicas" -}}
      {{- $problems = append $problems (printf "worker.replicas is set and autoscaling.mode is %s: the autoscaler counts the pods; set autoscaling.minReplicas" .mode) -}}
    {{- end -}}
    {{- $autoscale := default dict (default dict $config.scheduler).autoscale -}}
    {{- range list "slots_min" "slots_max" -}}
      {{- if not (kindIs "invalid" (get $autoscale . | default nil)) -}}
        {{- $problems = append $problems (printf "config.scheduler.autoscale.%s is refused: the chart sets it; use autoscaling.minReplicas and maxReplicas" .) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- if and .Values.api.enabled (eq (int .Values.api.port) (int .Values.http.port)) -}}
  {{- $problems = append $problems (printf "api.port and http.port are both %d: they need one each" (int .Values.api.port)) -}}
{{- end -}}
{{- if and .Values.api.operators (not .Values.secrets.natsKeys.existingSecret) -}}
  {{- $problems = append $problems "api.operators needs the operator's key: set secrets.natsKeys.existingSecret; a NATS that tells nobody apart needs neither" -}}
{{- end -}}

{{- range $key, $instead := dict
    "producer.api_addr" "the chart sets it; use api.enabled and api.port"
    "producer.api_tokens_file" "the chart sets it; use secrets.apiTokens"
    "producer.api_tls_cert_file" "the chart sets it; use secrets.apiTls"
    "producer.api_tls_key_file" "the chart sets it; use secrets.apiTls"
    "producer.operator_nkey_file" "the chart sets it; use api.operators"
    "scheduler.operator_nkey_file" "the chart sets it; use api.operators"
    "scheduler.console_tokens_file" "the chart sets it; use secrets.apiTokens"
    "claude.api_key" "it would be readable in a ConfigMap; use secrets.claudeApiKey"
    "claude.api_key_file" "the chart sets it; use secrets.claudeApiKey"
    "nats.creds_file" "the chart sets it; use secrets.natsCreds"
    "nats.nkey_file" "the chart sets it; use secrets.natsKeys"
    "nats.tls_ca_file" "the chart sets it; use secrets.natsCa"
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

{{- range $name := list "producer" "worker" -}}
  {{- if kindIs "invalid" (default dict (get $.Values.config $name)).drain_ms -}}
    {{- $problems = append $problems (printf "config.%s.drain_ms is not set: the grace period of the pods follows from it" $name) -}}
  {{- end -}}
{{- end -}}

{{- range $name := list "producer" "scheduler" "worker" -}}
  {{- $component := fromYaml (include "fairlane.component" (dict "root" $ "component" $name)) -}}
  {{- $explicit := $component.terminationGracePeriodSeconds -}}
  {{- if not (kindIs "invalid" $explicit) -}}
    {{- $min := int64 (include "fairlane.graceMin" (dict "root" $ "component" $name)) -}}
    {{- if lt (int64 $explicit) $min -}}
      {{- $why := ternary "the longest end of that role" (printf "config.%s.drain_ms / 1000 + 15" $name) (eq $name "scheduler") -}}
      {{- $problems = append $problems (printf "%s.terminationGracePeriodSeconds is %d and must be at least %d (%s): pods would be killed at work" $name (int64 $explicit) $min $why) -}}
    {{- end -}}
  {{- end -}}
  {{- if and $component.pdb.enabled (regexMatch "^0+%?$" (toString $component.pdb.maxUnavailable)) -}}
    {{- $problems = append $problems (printf "%s.pdb.maxUnavailable is %v: no node with such a pod could be drained; allow at least 1" $name $component.pdb.maxUnavailable) -}}
  {{- end -}}
  {{- range $variable, $value := $component.extraEnv -}}
    {{- if or (eq $variable "FAIRLANE_NATS_URL") (and (hasPrefix "FAIRLANE__" $variable) (not (has $variable (list "FAIRLANE__NATS__USER" "FAIRLANE__NATS__PASSWORD")))) -}}
      {{- $problems = append $problems (printf "%s.extraEnv.%s is refused: it would win over the configuration that the chart knows; use config, or secrets" $name $variable) -}}
    {{- end -}}
  {{- end -}}
  {{- range $component.extraVolumes -}}
    {{- if has .name (list "config" "claude-api-key" "nats-creds" "nats-ca" "api-tokens" "api-tls" "operator-key") -}}
      {{- $problems = append $problems (printf "%s.extraVolumes: the name %s belongs to the chart" $name .name) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- with $problems -}}
  {{- fail (printf "these values cannot work:\n  - %s" (join "\n  - " .)) -}}
{{- end -}}
{{- end -}}
