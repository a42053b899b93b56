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
VALUES = CHART / "ci"


def values_file(name):
    return VALUES / f"{name}-values.yaml"


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
            arguments += ["-f", values_file(file)]
        arguments += ["-f", inline.name]
        if show:
            arguments += ["--show-only", show]
        return helm(*arguments)


def notes(*files):
    """What helm tells after an installation."""
    arguments = [argument for file in files for argument in ("-f", values_file(file))]
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
    """What is wrong with an object, for a built-in kind or one of CUSTOM."""
    if one["kind"] in CUSTOM:
        found = jsonschema.Draft202012Validator(CUSTOM[one["kind"]]).iter_errors(one)
    else:
        found = validator(one["kind"], one["apiVersion"], kube).iter_errors(one)
    where = f"{one['kind']} {one['metadata']['name']}"
    return [f"{where}: {'.'.join(map(str, error.path))}: {error.message}" for error in found]


def closed(**properties):
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(properties)}


TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
COUNT = {"type": "integer", "minimum": 0}
METADATA = closed(name=TEXT, namespace=TEXT, labels=TEXTS)
LABEL_SELECTOR = closed(
    matchLabels=TEXTS,
    matchExpressions={
        "type": "array",
        "items": closed(key=TEXT, operator={"enum": ["In"]}, values={"type": "array", "items": TEXT}),
    },
)
ENDPOINTS = {"type": "array", "items": closed(port=TEXT, path=TEXT, interval=TEXT)}


def optional(schema, *names):
    """The same, where these properties may be absent."""
    return {**schema, "required": [name for name in schema["required"] if name not in names]}


def listed(*items):
    return {"type": "array", "minItems": 1, "items": {"oneOf": list(items)}}


SCALING_RULES = closed(
    stabilizationWindowSeconds=COUNT,
    # A quantity: a number would be refused.
    tolerance=TEXT,
    policies=listed(closed(type={"enum": ["Percent", "Pods"]}, value=COUNT, periodSeconds=COUNT)),
)
BEHAVIOR = closed(scaleUp=optional(SCALING_RULES, "tolerance"), scaleDown=optional(SCALING_RULES, "tolerance"))
# The parts of custom resources that the chart writes; anything else would be a misspelling. What their own schemas say of
# them is checked beside this, by crds.mjs.
CUSTOM = {
    "PodMonitor": closed(
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind=TEXT,
        metadata=METADATA,
        spec=closed(selector=LABEL_SELECTOR, podTargetLabels={"type": "array", "items": TEXT}, podMetricsEndpoints=ENDPOINTS),
    ),
    "ServiceMonitor": closed(
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind=TEXT,
        metadata=METADATA,
        spec=closed(selector=LABEL_SELECTOR, targetLabels={"type": "array", "items": TEXT}, endpoints=ENDPOINTS),
    ),
    # What is in the rules is for promtool.
    "PrometheusRule": closed(
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind=TEXT,
        metadata=METADATA,
        spec=closed(groups={"type": "array", "minItems": 1}),
    ),
    "ScaledObject": closed(
        apiVersion={"const": "keda.sh/v1alpha1"},
        kind=TEXT,
        metadata=METADATA,
        spec=closed(
            scaleTargetRef=closed(apiVersion={"const": "apps/v1"}, kind={"const": "Deployment"}, name=TEXT),
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            pollingInterval=COUNT,
            cooldownPeriod=COUNT,
            fallback=closed(
                failureThreshold=COUNT, replicas=COUNT, behavior={"enum": ["scalingModifiers", "currentReplicasIfHigher"]}
            ),
            advanced=optional(
                closed(
                    scalingModifiers=closed(formula=TEXT, target=TEXT, metricType={"const": "AverageValue"}),
                    horizontalPodAutoscalerConfig=closed(behavior=BEHAVIOR),
                ),
                "scalingModifiers",
            ),
            triggers=listed(
                closed(
                    type={"const": "metrics-api"},
                    name=TEXT,
                    metricType={"const": "AverageValue"},
                    metadata=closed(url=TEXT, valueLocation=TEXT, targetValue=TEXT),
                ),
                closed(
                    type={"const": "prometheus"},
                    name=TEXT,
                    metricType={"const": "AverageValue"},
                    metadata=closed(serverAddress=TEXT, query=TEXT, threshold=TEXT, ignoreNullValues={"const": "false"}),
                ),
            ),
        ),
    ),
}
