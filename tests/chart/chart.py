"""Rendering the chart, and reading what comes out strictly."""

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path

import jsonschema
import kubernetes_validate.utils as kubernetes
import referencing
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "fairlane"
VALUES = Path(__file__).parent / "values"


class Refused(Exception):
    """helm refused the values; the text says why."""


class StrictLoader(yaml.CSafeLoader):
    """Refuses a key that stands twice in a mapping: the API server does, other readers take one of them."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"keys twice: {sorted(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


def helm(*arguments):
    """Standard output of helm, which must succeed."""
    ended = subprocess.run([os.environ["HELM"], *map(str, arguments)], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Refused(ended.stderr)
    return ended.stdout


def render(*files, name="demo", kube="1.37", namespace="default", values=None, show=None):
    """The manifests as text: values files in order, then `values`, a tree."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as inline:
        json.dump(values or {}, inline)
        inline.flush()
        arguments = ["template", name, CHART, "--kube-version", kube, "--namespace", namespace]
        for file in files:
            arguments += ["-f", VALUES / f"{file}.yaml"]
        arguments += ["-f", inline.name]
        if show:
            arguments += ["--show-only", show]
        return helm(*arguments)


def notes(*files):
    """What helm tells after an installation."""
    arguments = [argument for file in files for argument in ("-f", VALUES / f"{file}.yaml")]
    told = helm("install", "demo", CHART, "--dry-run=client", *arguments)
    return told.split("\nNOTES:\n", 1)[1]


def objects(text):
    """Manifests as trees. Strict: no key twice, nothing empty."""
    found = list(yaml.load_all(text, StrictLoader))
    assert all(isinstance(one, dict) for one in found), "an empty document"
    return found


def find(found, kind, suffix):
    """The one object of this kind whose name ends so."""
    [one] = [one for one in found if one["kind"] == kind and one["metadata"]["name"].endswith(suffix)]
    return one


def toml_text(found):
    return find(found, "ConfigMap", "-config")["data"]["fairlane.toml"]


def pods(found):
    """(owner, pod template) of everything that runs."""
    return [(one, one["spec"]["template"]) for one in found if one["kind"] in ("Deployment", "StatefulSet")]


@functools.cache
def validator(kind, api_version, kube):
    """The strict schema of one kind. Read once: kubernetes_validate.validate reads 2 MB for every object."""
    group = api_version.split("/")
    name = f"{kind}-{group[0].split('.')[0]}-{group[1]}" if len(group) == 2 else f"{kind}-{api_version}"
    folder = f"kubernetes-json-schema/v{schema_version(kube)}-local-strict"
    schema = kubernetes.schema_contents(f"{folder}/{name.lower()}.json", kube)
    shared = referencing.Resource.from_contents(kubernetes.schema_contents(f"{folder}/_definitions.json", kube))
    registry = (shared @ referencing.Registry()).crawl()
    return jsonschema.Draft202012Validator(schema, registry=registry)


@functools.cache
def schema_version(kube):
    [version] = {one for one in kubernetes.all_versions() if one.startswith(f"{kube}.")}
    return version


def schema_errors(one, kube):
    """What is wrong with an object, for a built-in kind or PodMonitor."""
    if one["kind"] == "PodMonitor":
        found = jsonschema.Draft202012Validator(POD_MONITOR).iter_errors(one)
    else:
        found = validator(one["kind"], one["apiVersion"], kube).iter_errors(one)
    where = f"{one['kind']} {one['metadata']['name']}"
    return [f"{where}: {'.'.join(map(str, error.path))}: {error.message}" for error in found]


def closed(**properties):
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(properties)}


TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
# The part of the custom resource that the chart writes; anything else would be a misspelling.
POD_MONITOR = closed(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind=TEXT,
    metadata=closed(name=TEXT, namespace=TEXT, labels=TEXTS),
    spec=closed(
        selector=closed(
            matchLabels=TEXTS,
            matchExpressions={
                "type": "array",
                "items": closed(key=TEXT, operator={"enum": ["In"]}, values={"type": "array", "items": TEXT}),
            },
        ),
        podTargetLabels={"type": "array", "items": TEXT},
        podMetricsEndpoints={"type": "array", "items": closed(port=TEXT, path=TEXT, interval=TEXT)},
    ),
)
