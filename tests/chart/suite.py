"""Tests of the chart and of deploy/. Run by tests/chart/run; a word as argument runs only the tests with it in their name."""

import copy
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import yaml

import live
import natschart
import readme
import rules
import settings
from chart import CHART, ROOT, VALUES, Refused, find, helm, notes, objects, pods, render, schema_errors, toml_text, values_file

FILES = sorted(path.name.removesuffix("-values.yaml") for path in VALUES.glob("*-values.yaml"))
NAMES = ["demo", "n", "on", "123", "1e3"]
KUBES = ["1.29", "1.33", "1.37"]
ROLES = ["producer", "scheduler", "worker"]

TESTS = []


def test(*cases):
    """Registers a function as a test, once for each case (a tuple of arguments)."""

    def register(function):
        for case in cases or [()]:
            words = [function.__name__.replace("_", " "), *map(str, case)]
            TESTS.append((": ".join([words[0], " ".join(words[1:])]) if case else words[0], function, case))
        return function

    return register


def nothing(wrong):
    assert not wrong, "\n".join(map(str, wrong))


def same(got, wanted):
    assert got == wanted, f"got    {got!r}\nwanted {wanted!r}"


def tree(file):
    return yaml.safe_load(values_file(file).read_text())


def deployment(found, role):
    return find(found, "Deployment", f"-{role}")["spec"]


def pod(found, role):
    return deployment(found, role)["template"]["spec"]


# Manifests


@test(*[(file,) for file in FILES])
def helm_lints(file):
    told = helm("lint", "--strict", CHART, "-f", values_file(file))
    assert "1 chart(s) linted, 0 chart(s) failed" in told, told


@test(*[(file, name, kube) for file in FILES for name in NAMES for kube in KUBES])
def manifests_are_valid(file, name, kube):
    found = objects(render(file, name=name, kube=kube, namespace="1e3"))
    assert len(found) >= 7
    nothing([error for one in found for error in schema_errors(one, kube)] + rules.all_rules(found))
    for _, template in pods(found):
        same(template["metadata"]["labels"]["app.kubernetes.io/instance"], name)
    nothing([one["metadata"]["name"] for one in found if one["metadata"]["namespace"] != "1e3"])


@test(*[(file,) for file in FILES])
def two_renders_are_identical(file):
    same(render(file), render(file))


@test()
def long_release_names_stay_apart():
    first, second = ("a" * 52 + last for last in "xy")
    names = [{one["metadata"]["name"] for one in objects(render("trial", name=name))} for name in (first, second)]
    same(names[0] & names[1], set())
    for name in (first, second):
        nothing(rules.all_rules(objects(render("trial", name=name))))


@test(("demo", "demo-fairlane"), ("my-fairlane", "my-fairlane"), ("123", "fairlane-123-fairlane"), ("a.b", "a-b-fairlane"))
def names_follow_from_the_release(release, wanted):
    find(objects(render("minimal", name=release)), "Deployment", f"{wanted}-worker")


@test()
def old_clusters_are_refused():
    try:
        render("minimal", kube="1.28")
    except Refused as refused:
        assert "requires kubeVersion: >=1.29.0-0" in str(refused), refused
    else:
        raise AssertionError("accepted")


# Refusals


with (ROOT / "tests" / "chart" / "negative.yaml").open() as table:
    NEGATIVE = {case["name"]: case for case in yaml.safe_load(table)}


@test(*[(name,) for name in NEGATIVE])
def values_are_refused(name):
    case = NEGATIVE[name]
    over = case.get("over", "minimal")
    try:
        render(*([over] if over else []), values=case["values"])
    except Refused as refused:
        same(re.findall(r"^ *- (.*)$", str(refused), re.M), case["says"])
    else:
        raise AssertionError("accepted")


@test()
def the_schema_of_the_values_is_one():
    import json

    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)

    def loose(node, path):
        if isinstance(node, dict):
            if "properties" in node and node.get("type") == "object" and "additionalProperties" not in node:
                yield path
            for key, inner in node.items():
                yield from loose(inner, f"{path}/{key}")

    # Entries of this list are Kubernetes' own business.
    same(list(loose(schema, "")), ["/$defs/component/properties/extraVolumes/items"])


# Grace


@test((0, 15), (1, 16), (30_000, 45), (30_001, 46), (120_000, 135), (7_200_000, 7215))
def workers_and_producers_get_their_drain_and_15_seconds(drain_ms, seconds):
    for drained, graces in (("worker", [135, 25, seconds]), ("producer", [seconds, 25, 135])):
        found = objects(render("minimal", values={"config": {drained: {"drain_ms": drain_ms}}}))
        same([pod(found, role)["terminationGracePeriodSeconds"] for role in ROLES], graces)
        assert deployment(found, drained)["progressDeadlineSeconds"] > seconds


@test()
def a_longer_grace_is_kept():
    found = objects(render("minimal", values={"worker": {"terminationGracePeriodSeconds": 135}}))
    same(pod(found, "worker")["terminationGracePeriodSeconds"], 135)
    found = objects(render("minimal", values={"defaults": {"terminationGracePeriodSeconds": 600}}))
    same([pod(found, role)["terminationGracePeriodSeconds"] for role in ROLES], [600] * 3)


@test()
def the_drain_is_that_of_the_programs():
    chart = yaml.safe_load((CHART / "values.yaml").read_text())
    for role in ("producer", "worker"):
        same(chart["config"][role]["drain_ms"], settings.example()[role]["drain_ms"])


# Configuration


@test(*[(file,) for file in FILES])
def the_configuration_has_only_keys_that_exist(file):
    nothing(settings.unknown_keys(tomllib.loads(toml_text(objects(render(file))))))


@test()
def the_configuration_says_what_the_values_say():
    wanted = copy.deepcopy(tree("config")["config"])
    del wanted["nats"]["creds_file"], wanted["telemetry"]
    wanted["claude"]["api_key_file"] = "/etc/fairlane/claude/api-key"
    for role in ROLES:
        wanted.setdefault(role, {})["http_addr"] = "0.0.0.0:8080"
    # The chart's own, which this file does not set.
    wanted["producer"].setdefault("drain_ms", settings.example()["producer"]["drain_ms"])
    got = tomllib.loads(toml_text(objects(render("config"))))
    same(got, wanted)
    for number in (got["nats"]["request_timeout_ms"], got["limits"]["pools"]["sonnet-4.x"]["input_tokens_per_minute"]):
        same(type(number), int)


@test()
def the_chart_adds_what_it_knows():
    got = tomllib.loads(toml_text(objects(render("extras"))))
    same(got["nats"], {"url": "nats://demo-fairlane-nats:4222"})
    same(got["claude"], {"base_url": "http://demo-fairlane-simulator:9000", "api_key": "simulator"})
    same(got["worker"]["http_addr"], "[::]:9090")
    found = objects(render("production"))
    got = tomllib.loads(toml_text(found))
    same((got["nats"]["creds_file"], got["claude"]["api_key_file"]), ("/etc/fairlane/nats/nats.creds", "/etc/fairlane/claude/key"))
    for role in ROLES:
        mounts = {mount["mountPath"] for mount in pod(found, role)["containers"][0]["volumeMounts"]}
        same("/etc/fairlane/claude" in mounts, role == "worker")
        assert "/etc/fairlane/nats" in mounts
    same(
        pod(found, "worker")["volumes"][1]["secret"],
        {"secretName": "claude", "defaultMode": 0o440, "items": [{"key": "key", "path": "key"}]},
    )


@test()
def a_change_of_the_configuration_restarts_the_pods_and_nothing_else_does():
    def checksums(**values):
        found = objects(render("minimal", values=values))
        return [deployment(found, role)["template"]["metadata"]["annotations"]["checksum/config"] for role in ROLES]

    before = checksums()
    same(len(set(before)), 1)
    same(checksums(worker={"replicas": 9}, podMonitor={"enabled": True}), before)
    changed = checksums(config={"worker": {"slots": 9}})
    assert not set(changed) & set(before), changed


if os.environ["FAIRLANE"]:

    @test(*[(file,) for file in FILES])
    def the_program_accepts_the_configuration(file):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write(toml_text(objects(render(file))))
            config.flush()
            environment = {"FAIRLANE__NATS__PASSWORD": "p"} if file == "config" else {}
            command = [os.environ["FAIRLANE"], "--config", config.name, "config", "show", "-o", "json"]
            ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            same((ended.returncode, ended.stderr), (0, ""))

    @test()
    def a_fleet_started_like_the_trial_pods_answers_jobs():
        found = objects(render("trial"))
        live.answers_jobs(found, find(found, "ConfigMap", "-nats")["data"]["nats-server.conf"])

    @test()
    def three_servers_of_the_nats_chart_take_the_objects():
        natschart.three_servers_take_the_objects(os.environ["FAIRLANE"])

    @test()
    def a_fleet_on_the_nats_of_deploy_answers_jobs():
        live.answers_jobs(objects(render("minimal")), (ROOT / "deploy" / "nats-server.conf").read_text())


# Roles


@test()
def a_role_overrides_defaults_also_with_nothing():
    found = objects(render("extras"))
    same([deployment(found, role)["replicas"] for role in ROLES], [0, 1, 1])
    same(deployment(found, "producer")["strategy"], {"type": "Recreate"})
    assert "topologySpreadConstraints" not in pod(found, "producer")
    budgets = {one["metadata"]["name"]: one["spec"]["maxUnavailable"] for one in found if one["kind"] == "PodDisruptionBudget"}
    same(budgets, {"demo-fairlane-producer": 1, "demo-fairlane-worker": 2})
    variables = {role: {one["name"]: one for one in pod(found, role)["containers"][0]["env"]} for role in ROLES}
    same(variables["producer"]["REMOVED"], {"name": "REMOVED", "value": "yes"})
    same(variables["producer"]["ANSWER"]["value"], "42")
    same(variables["worker"].get("REMOVED"), None)
    same(variables["worker"]["FAIRLANE__NATS__PASSWORD"]["valueFrom"], {"secretKeyRef": {"name": "nats", "key": "password"}})
    same([len(pod(found, role)["volumes"]) for role in ROLES], [1, 2, 2])


@test()
def each_role_runs_its_command_and_is_asked_three_questions():
    found = objects(render("minimal"))
    for role in ROLES:
        [container] = pod(found, role)["containers"]
        same(container["args"], [role, "--config", "/etc/fairlane/fairlane.toml"])
        probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
        same(probes, {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"})
    same(deployment(found, "worker")["strategy"]["rollingUpdate"], {"maxSurge": "25%", "maxUnavailable": 0})


@test(
    ({}, "registry.example/fairlane:{app}"),
    ({"tag": "2"}, "registry.example/fairlane:2"),
    ({"tag": "2", "digest": "sha256:" + "0" * 64}, "registry.example/fairlane@sha256:" + "0" * 64),
)
def images_go_by_digest_before_tag(image, wanted):
    app = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    found = objects(render("trial", values={"image": image}))
    for role in [*ROLES, "simulator"]:
        same(pod(found, role)["containers"][0]["image"], wanted.format(app=app))


# Scaling


def scaler(found, kind):
    [one] = [one for one in found if one["kind"] == kind]
    return one["spec"]


@test(("none", 1), ("keda", 0), ("hpa", 0))
def an_autoscaler_alone_counts_the_workers(mode, with_replicas):
    found = objects(render("minimal", values={"autoscaling": {"mode": mode}}))
    same(["replicas" in deployment(found, role) for role in ROLES], [True, True, bool(with_replicas)])
    same(len([one for one in found if one["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")]), 1 - with_replicas)


@test()
def slots_are_counted_alike_by_workers_schedulers_and_autoscalers():
    found = objects(render("keda"))
    config = tomllib.loads(toml_text(found))
    same(config["worker"]["slots"], 32)
    same(config["scheduler"]["autoscale"], {"slots_min": 96, "slots_max": 960})
    spec = scaler(found, "ScaledObject")
    same([one["metadata"].get("targetValue", one["metadata"].get("threshold")) for one in spec["triggers"]], ["32", "32"])
    same(spec["advanced"]["scalingModifiers"]["target"], "32")
    same(settings.example()["worker"]["slots"], 64)
    hpa = scaler(objects(render("hpa")), "HorizontalPodAutoscaler")
    same(hpa["metrics"][0]["external"]["target"], {"type": "AverageValue", "averageValue": "64"})


@test()
def keda_asks_the_schedulers_first_and_is_let_in():
    found = objects(render("keda"))
    first, second = scaler(found, "ScaledObject")["triggers"]
    service = find(found, "Service", "-scheduler")
    url = f"http://{service['metadata']['name']}.default.svc:{service['spec']['ports'][0]['port']}/v1/autoscale?pool=default"
    same((first["metadata"]["url"], first["metadata"]["valueLocation"]), (url, "wanted_slots"))
    same(second["metadata"]["ignoreNullValues"], "false")
    peers = find(found, "NetworkPolicy", "-scheduler")["spec"]["ingress"][0]["from"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}} in peers, peers
    same(len(find(found, "NetworkPolicy", "-worker")["spec"]["ingress"][0]["from"]), 1)


@test()
def without_prometheus_an_error_keeps_what_is_there():
    spec = scaler(objects(render("keda-alone")), "ScaledObject")
    same(spec["fallback"], {"failureThreshold": 4, "replicas": 1, "behavior": "currentReplicasIfHigher"})
    same((len(spec["triggers"]), spec["minReplicaCount"]), (1, 0))


@test(("1.29", False), ("1.33", True))
def tolerance_is_rendered_where_it_is_known(kube, is_known):
    for file, kind in (("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")):
        text = render(file, kube=kube, show="templates/autoscaling.yaml")
        same('tolerance: "0.1"' in text, is_known)


@test((1,), (2,), (5,))
def no_node_is_ever_kept_from_being_drained(replicas):
    found = objects(render("minimal", values={"defaults": {"replicas": replicas}}))
    for one in found:
        if one["kind"] == "PodDisruptionBudget":
            most = one["spec"]["maxUnavailable"]
            # A percentage is rounded up.
            assert (int(most[:-1]) if isinstance(most, str) else most) > 0
            same(one["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow")


# What watches over it


@test()
def rules_and_dashboards_arrive_as_they_stand_in_their_files():
    import json

    found = objects(render("keda"))
    rules_found = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "PrometheusRule"}
    paths = sorted((CHART / "files" / "rules").glob("*.yaml"))
    same(rules_found, {f"demo-fairlane-rules-{path.stem}": yaml.safe_load(path.read_text()) for path in paths})
    boards = {name: text for one in found if "-dashboard-" in one["metadata"]["name"] for name, text in one["data"].items()}
    paths = sorted((CHART / "files" / "dashboards").glob("*.json"))
    same({name: json.loads(text) for name, text in boards.items()}, {path.name: json.loads(path.read_text()) for path in paths})
    assert rules_found and boards


@test()
def each_role_gets_its_own_key_to_nats():
    found = objects(render("keda"))
    same(tomllib.loads(toml_text(found))["nats"]["nkey_file"], "/etc/fairlane/nats/user.nk")
    for role in ROLES:
        [secret] = [one["secret"] for one in pod(found, role)["volumes"] if one["name"] == "nats-creds"]
        same(secret["items"], [{"key": f"{role}.nk", "path": "user.nk"}])
    [tester] = [one["spec"] for one in found if one["kind"] == "Pod"]
    [secret] = [one["secret"] for one in tester["volumes"] if one["name"] == "nats-creds"]
    same(secret["items"], [{"key": "operator.nk", "path": "user.nk"}])


@test()
def api_and_console_have_what_they_need_and_workers_none_of_it():
    found = objects(render("keda"))
    config = tomllib.loads(toml_text(found))
    same(config["producer"]["api_addr"], "0.0.0.0:8081")
    same(config["producer"]["api_tokens_file"], config["scheduler"]["console_tokens_file"])
    same(find(found, "Service", "-producer")["spec"]["ports"][1], {"name": "api", "port": 8081, "targetPort": "api"})
    ours = {"api-tokens": "api-tokens", "operator-key": "nats-keys", "api-tls": "api-tls"}
    for role, wanted in [("producer", ours), ("scheduler", {name: ours[name] for name in ["api-tokens", "operator-key"]}), ("worker", {})]:
        secrets = {one["name"]: one["secret"] for one in pod(found, role)["volumes"] if "secret" in one}
        same({name: secrets[name]["secretName"] for name in ours if name in secrets}, wanted)
        # Each file that the configuration names is where a volume is mounted.
        mounts = {one["mountPath"]: one["name"] for one in pod(found, role)["containers"][0]["volumeMounts"]}
        files = {key: value for key, value in config[role].items() if key.endswith("_file")}
        for path in files.values():
            folder, name = path.rsplit("/", 1)
            assert name in [item["path"] for item in secrets[mounts[folder]]["items"]], path
    ingress = find(found, "NetworkPolicy", "-producer")["spec"]["ingress"]
    same([rule["ports"][0]["port"] for rule in ingress], ["http", "api"])


@test(("minimal", "status"), ("trial", "submit"))
def helm_test_runs_a_command_of_the_program(file, command):
    [tester] = [one for one in objects(render(file)) if one["kind"] == "Pod"]
    assert command in tester["spec"]["containers"][0]["args"]
    same(tester["spec"]["restartPolicy"], "Never")


@test()
def custom_resources_pass_their_own_schemas():
    import json

    custom = [one for file in FILES for kube in KUBES for one in objects(render(file, kube=kube)) if "." in one["apiVersion"].split("/")[0]]
    custom = [one for one in custom if one["apiVersion"].split("/")[0] in ("keda.sh", "monitoring.coreos.com")]
    same({one["kind"] for one in custom}, {"PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor"})
    broken = copy.deepcopy([one for one in custom if one["kind"] == "ScaledObject"][0])
    broken["metadata"]["name"] = "broken"
    broken["spec"]["triggers"][0]["metadata"]["targetValue"] = 8
    command = ["node", str(ROOT / "tests" / "chart" / "crds.mjs")]
    told = subprocess.run(command, input=json.dumps([*custom, broken]), capture_output=True, text=True, check=False)
    same([line.split(":")[0] for line in told.stdout.splitlines()], ["ScaledObject broken"])
    same((told.returncode, told.stderr), (1, ""))


# Network


def egress(found, role):
    """Destinations of a role: (port, who)."""
    policy = find(found, "NetworkPolicy", f"-{role}")["spec"]
    for rule in policy["egress"]:
        for port in rule["ports"]:
            for peer in rule.get("to", [None]):
                yield port["protocol"], port["port"], peer and next(iter(peer.values()))


@test()
def policies_allow_what_each_role_needs_and_no_more():
    found = objects(render("production"))
    nats = {"matchLabels": {"kubernetes.io/metadata.name": "nats"}}
    tracing = {"matchLabels": {"kubernetes.io/metadata.name": "tracing"}}
    common = [("UDP", 53, None), ("TCP", 53, None), ("TCP", 4222, nats), ("TCP", 4223, nats)]
    claude = [("TCP", 443, {"cidr": "0.0.0.0/0"}), ("TCP", 443, {"cidr": "::/0"})]
    same(list(egress(found, "producer")), [*common, ("TCP", 4318, tracing)])
    same(list(egress(found, "scheduler")), [*common, ("TCP", 4318, tracing)])
    same(list(egress(found, "worker")), [*common, *claude, ("TCP", 4318, tracing)])
    ingress = find(found, "NetworkPolicy", "-worker")["spec"]["ingress"]
    same([port["port"] for rule in ingress for port in rule["ports"]], ["http"])

    found = objects(render("extras"))
    same(list(egress(found, "nats")) + list(egress(found, "simulator")), [])
    same([port for _, port, _ in egress(found, "worker")], [53, 53, "client", "http"])
    same([port for _, port, _ in egress(found, "producer")], [53, 53, "client"])
    same(find(found, "NetworkPolicy", "-worker")["spec"]["ingress"], [])


@test(
    ("nats://a,tls://b:4443,ws://c", [4222, 4443, 80]),
    ("wss://[::1]/x, nats://[::1]:99/", [443, 99]),
    ("nats://a:1,nats://b:1", [1]),
)
def policies_know_the_ports_of_nats(url, wanted):
    values = {"config": {"nats": {"url": url}}, "networkPolicy": {"enabled": True}}
    got = [port for _, port, _ in egress(objects(render("minimal", values=values)), "producer")]
    same(got, [53, 53, *wanted])


@test(("https://a", 443), ("http://a/b:9", 80), ("https://a:8443/b", 8443))
def policies_know_the_port_of_claude(url, wanted):
    values = {"config": {"claude": {"base_url": url}}, "networkPolicy": {"enabled": True}}
    got = [port for _, port, _ in egress(objects(render("minimal", values=values)), "worker")]
    same(got, [53, 53, 4222, wanted, wanted])


# Values and words


# Another value where a made-up one would not do, by path; the others are changed by their type.
OTHER = {
    "environment": "production",
    "image.digest": "sha256:" + "1" * 64,
    "image.pullPolicy": "Always",
    "image.pullSecrets": [{"name": "x"}],
    "http.host": "::",
    "commonLabels": {"x": "y"},
    "podSecurityContext": {"runAsUser": 1},
    "containerSecurityContext": {"privileged": False},
    "podMonitor.interval": "7s",
    "podMonitor.labels": {"x": "y"},
    "secrets.natsKeys.keys": {"worker": "x"},
    "autoscaling.mode": "hpa",
    "autoscaling.minReplicas": 4,
    "autoscaling.prometheus.serverAddress": "http://x",
    "serviceMonitor.interval": "7s",
    "serviceMonitor.labels": {"x": "y"},
    "alerts.labels": {"x": "y"},
    "dashboards.labels": {"x": "y"},
    "dashboards.annotations": {"x": "y"},
    "networkPolicy.autoscalerFrom": [{"podSelector": {}}],
    "networkPolicy.metricsFrom": [{"podSelector": {}}],
    "networkPolicy.apiFrom": [{"podSelector": {}}],
    "networkPolicy.natsTo": [{"podSelector": {}}],
    "networkPolicy.apiCidrs": ["10.0.0.0/8"],
    "networkPolicy.extraEgress": [{}],
    "devNats.storage.size": "7Gi",
    "simulator.args": ["x"],
    "defaults.strategy": {"type": "Recreate"},
    "defaults.terminationGracePeriodSeconds": 9999,
    "defaults.topologySpreadConstraints": [],
    "defaults.nodeSelector": {"x": "y"},
    "defaults.tolerations": [{"operator": "Exists"}],
    "defaults.affinity": {"nodeAffinity": {}},
    "defaults.podLabels": {"x": "y"},
    "defaults.podAnnotations": {"x": "y"},
    "defaults.extraEnv": {"X": "y"},
    "defaults.extraVolumes": [{"name": "x"}],
    "defaults.extraVolumeMounts": [{"name": "x"}],
    "producer": {"replicas": 7},
    "scheduler": {"replicas": 7},
    "worker": {"replicas": 7},
}


def leaves():
    """Every value that is not only a heading. A table that cannot be read fails a test of its own."""
    try:
        rows = readme.rows()
    except readme.Undocumented:
        return []
    return [(".".join(path),) for path, default, _ in rows if default is not None or path[-1] == "terminationGracePeriodSeconds"]


@test(*leaves())
def every_value_changes_something(path):
    keys = path.split(".")
    # The real parts and the trial parts exclude each other, so a value may show in either.
    bases = [
        ("minimal", {"secrets": {"natsCreds": {"existingSecret": "x"}}, **ON}),
        ("trial", ON),
        ("keda", {}),
    ]
    default = yaml.safe_load((CHART / "values.yaml").read_text())
    for key in keys:
        default = default[key]
    if path in OTHER:
        others = [OTHER[path]]
    elif isinstance(default, bool):
        others = [True, False]
    elif isinstance(default, int):
        others = [default + 1]
    elif isinstance(default, str):
        others = [f"{default}x"]
    else:
        others = [{"limits": {"memory": "7Gi"}}]

    differs = False
    for other in others:
        for key in reversed(keys):
            other = {key: other}
        for file, base in bases:
            told = outcome(file, overlaid(base, other))
            assert "values don't meet the spec" not in told, told
            differs = differs or told != outcome(file, base)
    assert differs, f"{others} change nothing"


def outcome(file, values):
    try:
        return render(file, values=values)
    except Refused as refused:
        return str(refused)


def overlaid(base, over):
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = overlaid(merged[key], value) if both else value
    return merged


ON = {"podMonitor": {"enabled": True}, "networkPolicy": {"enabled": True}}


@test()
def the_readme_lists_the_values():
    text = (CHART / "README.md").read_text()
    assert readme.expected(text) == text, "run tests/chart/readme.py --write"


@test()
def a_value_without_a_comment_is_noticed():
    text = "# A value.\na: 1\n\nb: 2"
    try:
        list(readme.walk(yaml.compose(text, yaml.CSafeLoader), text.splitlines(), ()))
    except readme.Undocumented as undocumented:
        same(str(undocumented), "b")
    else:
        raise AssertionError("not noticed")


@test(*[(file,) for file in FILES])
def the_notes_are_short(file):
    told = notes(file)
    assert len(told.splitlines()) < 25, told
    assert "%!" not in told and "<no value>" not in told, told
    if tree(file).get("devNats"):
        assert "WARNING: devNats" in told, told


# Checks of the checks


BAD_PODS = {
    "hostNetwork is on": {"hostNetwork": True},
    "runAsNonRoot is not true": {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
    "no seccomp profile": {"securityContext": {"runAsNonRoot": True}},
    "volume {'name': 'x', 'hostPath': {'path': '/'}}": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]},
}
BAD_CONTAINERS = {
    "privileged": {"privileged": True},
    "allowPrivilegeEscalation is not false": {"allowPrivilegeEscalation": None},
    "capabilities are not dropped": {"capabilities": {"drop": ["NET_RAW"]}},
    "capabilities are added": {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
    "runAsUser is 0": {"runAsUser": 0},
}


@test()
def the_pod_security_rules_notice_each_violation():
    good = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}],
    }
    same(rules.restricted(good), [])
    for wanted, change in BAD_PODS.items():
        same(rules.restricted({**good, **change}), [wanted])
    for wanted, change in BAD_CONTAINERS.items():
        container = {"securityContext": {**good["containers"][0]["securityContext"], **change}}
        same(rules.restricted({**good, "containers": [container]}), [wanted])


@test()
def the_schemas_notice_unknown_fields_and_labels_that_are_no_texts():
    [service] = [one for one in objects(render("trial")) if one["kind"] == "Service" and one["metadata"]["name"].endswith("nats")]
    same(schema_errors(service, "1.37"), [])
    service["spec"]["slector"] = {}
    service["metadata"]["labels"]["x"] = True
    same(len(schema_errors(service, "1.37")), 2)
    monitor = find(objects(render("production")), "PodMonitor", "")
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "1s"
    same(len(schema_errors(monitor, "1.37")), 1)


@test()
def a_selector_or_port_that_misses_is_noticed():
    def broken(kind, suffix, change):
        found = objects(render("extras"))
        change(find(found, kind, suffix)["spec"])
        return rules.selectors(found) + rules.ports(found)

    assert broken("Service", "-nats", lambda spec: spec["selector"].update({"app.kubernetes.io/component": "x"}))
    assert broken("Service", "-nats", lambda spec: spec["ports"][0].update(targetPort="x"))
    assert broken("PodDisruptionBudget", "-worker", lambda spec: spec["selector"]["matchLabels"].popitem())
    assert broken("NetworkPolicy", "-worker", lambda spec: spec["egress"][-1]["ports"][0].update(port="x"))


# deploy/


@test()
def the_values_for_the_nats_chart_fit_together():
    values = yaml.safe_load(natschart.VALUES.read_text())
    store = values["config"]["jetstream"]["fileStore"]
    # The files of streams take more than what is in them.
    assert natschart.bytes_of(store["maxSize"]) <= 0.9 * natschart.bytes_of(store["pvc"]["size"]), store
    tree = natschart.configuration(values)
    # What is included lies in a directory of its own: a file mounted by itself would never change.
    [include] = [path for key, path in tree.items() if key.endswith("$include")]
    same(natschart.mounts(values), {f"/etc/nats-config/{os.path.dirname(include).removeprefix('./')}": "nats-auth"})
    limit = values["container"]["merge"]["resources"]["limits"]["memory"]
    assert int(values["container"]["env"]["GOMEMLIMIT"].removesuffix("MiB")) << 20 < natschart.bytes_of(limit)
    values["config"]["websocket"] = {"enabled": True}
    try:
        natschart.configuration(values)
    except natschart.Unknown as unknown:
        assert "websocket" in str(unknown), unknown
    else:
        raise AssertionError("accepted")


@test((True,), (False,))
def nats_servers_take_their_configuration(from_chart):
    if from_chart:
        text = find(objects(render("trial")), "ConfigMap", "-nats")["data"]["nats-server.conf"]
    else:
        text = (ROOT / "deploy" / "nats-server.conf").read_text()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write(text)
        config.flush()
        ended = subprocess.run(
            [os.environ["NATS_SERVER"], "-t", "--config", config.name], capture_output=True, text=True, check=False
        )
    same(ended.returncode, 0)
    assert "configuration file" in ended.stderr + ended.stdout and "is valid" in ended.stderr + ended.stdout, ended
    assert "sync_interval: always" in text and "default_max_consumers: -1" in text


@test()
def the_image_is_built_with_the_pinned_toolchain_and_runs_as_the_chart_says():
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    channel = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
    assert f"ARG RUST_VERSION={channel}\n" in text
    user = yaml.safe_load((CHART / "values.yaml").read_text())["podSecurityContext"]["runAsUser"]
    assert f"\nUSER {user}:{user}\n" in text


@test()
def the_chart_installs_the_version_of_this_tree():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    same(chart["appVersion"], workspace["package"]["version"])


@test()
def compose_sets_only_keys_that_exist():
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    known = settings.example()
    seen = 0
    for name, service in compose["services"].items():
        for variable in service.get("environment", {}):
            if variable.startswith("FAIRLANE__"):
                section, key = variable.removeprefix("FAIRLANE__").lower().split("__")
                assert key in known[section], f"{name}: {variable}"
                seen += 1
    assert seen


def main():
    word = " ".join(sys.argv[1:])
    chosen = [one for one in TESTS if word in one[0]]
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        failures = [text for text in pool.map(run, chosen) if text]
    if not os.environ["FAIRLANE"]:
        print("not run: what needs the program itself; set FAIRLANE to a built one")
    print(f"{time.monotonic() - began:.1f} s")
    print(f"{len(chosen) - len(failures)} passed, {len(failures)} failed")
    sys.exit(1 if failures or not chosen else 0)


def run(chosen):
    name, function, case = chosen
    try:
        function(*case)
    except Exception as error:  # noqa: BLE001 - whatever a test raises is its failure
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"FAIL  {name}\n      {where.name}, line {where.lineno}: {type(error).__name__}: {error}".replace("\n", "\n      ")
        print(text, flush=True)
        return text
    return None


if __name__ == "__main__":
    main()
