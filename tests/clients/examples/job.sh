#!/usr/bin/env bash
# Publishes a job, waits for its outcome and prints the answer. Needs: the nats CLI, jq
set -euo pipefail

tenant=acme
job=job-$(date +%s)-$RANDOM
body=$(jq -n --arg id "$job" '{
  id: $id,
  origin: "user_action",
  kind: "short_summary",
  model: "claude-haiku-4-5-20251001",
  prompt: "Say in one sentence what a message queue is for."
}')
# With --jetstream the command fails unless the job was stored. Without --no-templates, "{{" in a prompt would be expanded.
nats pub --jetstream --quiet --no-templates "fl.submit.$tenant" "$body"

for _ in {1..240}; do
  record=$(nats kv get fl_status "$tenant.$job" --raw 2>/dev/null || echo '{}')
  case $(jq -r .phase <<<"$record") in
    done) echo "$tenant/$job: $(jq -j '.result.content[] | select(.type == "text").text' <<<"$record")"; exit 0 ;;
    failed | cancelled) jq .failure <<<"$record" >&2; exit 1 ;;
  esac
  sleep 0.5
done
echo "no outcome within 120 s" >&2
exit 1
