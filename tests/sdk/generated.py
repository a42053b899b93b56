"""A client generated from the OpenAPI document that is served."""

import importlib
import json
import subprocess
import sys
import uuid

from suite.fleet import get
from world import MODEL

CONFIG = """
post_hooks: []  # formatting is for people
package_name_override: fairlane_generated
content_type_overrides:  # lines and events are text to it
  application/x-jsonl: text/plain
  application/x-ndjson: text/plain
"""
METHODS = {"get", "put", "post", "delete"}


def generated_client(world):
    """A client generated from the OpenAPI document has every operation, and its calls are answered as described"""
    document = get(f"{world.fleet.api_url}/v1/openapi.json")
    operations = {
        operation["operationId"]
        for item in json.loads(document)["paths"].values()
        for method, operation in item.items()
        if method in METHODS
    }
    client, modules = generate(world, document)
    assert operations == set(modules), operations ^ set(modules)
    of_tenant = client.AuthenticatedClient(base_url=world.fleet.api_url, token=world.key("acme"))
    of_operator = client.AuthenticatedClient(base_url=world.fleet.api_url, token=world.operator())
    of_nobody = client.AuthenticatedClient(base_url=world.fleet.api_url, token="flk_no")

    def call(name, *arguments, status=200, by=of_tenant, **fields):
        answer = modules[name].sync_detailed(*arguments, client=by, **fields)
        assert answer.status_code == status, (name, answer.status_code, answer.content)
        assert answer.parsed is not None, f"{name}: the answer is not as described"
        return answer.parsed

    def body(name, fields):
        return vars(client.models)[name].from_dict(fields)

    said = {"model": MODEL, "max_tokens": 16, "messages": [{"role": "user", "content": "hello"}]}
    answer = call("post_messages", body=body("PostMessagesBody", said))
    assert answer["type"] == "message" and answer["stop_reason"] == "end_turn", answer
    job = {"origin": "user_action", "kind": "tagging", "model": MODEL, "prompt": "five tags", "id": f"gen-{uuid.uuid4()}"}
    made = call("post_jobs", body=body("PostJobsBody", job), status=202)
    assert made["job"] == job["id"], made
    assert call("get_jobs_job_result", made["job"], wait=30)["type"] == "message"
    assert call("get_jobs_job", made["job"])["phase"] == "done"
    assert call("get_models")["data"], "no models"
    assert call("get_ledger")["total"], "no ledger"
    key = call("post_tenants_tenant_keys", "generated", by=of_operator, body=body("PostTenantsTenantKeysBody", {}), status=201)
    call("delete_tenants_tenant_keys_key", "generated", key["id"], by=of_operator)
    # Errors are described as well.
    refused = call("get_models", by=of_nobody, status=401)
    assert refused.error.type_ == "authentication_error" and refused.request_id.startswith("req_"), refused
    assert call("get_jobs_job", "nobody", status=404).error.type_ == "not_found_error"
    assert call("get_tenants", status=403).error.type_ == "permission_error"


def generate(world, document):
    """The generated package, and its modules by operation."""
    scratch = world.fleet.scratch / "generated"
    scratch.mkdir(exist_ok=True)
    (scratch / "openapi.json").write_text(document)
    (scratch / "config.yml").write_text(CONFIG)
    command = [
        sys.executable, "-m", "openapi_python_client", "generate", "--path", "openapi.json", "--config", "config.yml",
        "--meta", "none", "--output-path", "fairlane_generated", "--overwrite", "--fail-on-warning",
    ]
    ended = subprocess.run(command, cwd=scratch, capture_output=True, timeout=60)
    said = (ended.stdout + ended.stderr).decode(errors="replace")
    assert ended.returncode == 0 and "WARNING" not in said, said
    sys.path.insert(0, str(scratch))
    try:
        package = importlib.import_module("fairlane_generated")
        package.models = importlib.import_module("fairlane_generated.models")
        files = (scratch / "fairlane_generated" / "api" / "default").glob("*.py")
        names = [file.stem for file in files if file.stem != "__init__"]
        return package, {name: importlib.import_module(f"fairlane_generated.api.default.{name}") for name in names}
    finally:
        sys.path.remove(str(scratch))
