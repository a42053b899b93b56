"""Rules for manifests that no schema knows. Each gives a list of what is wrong."""

import re

from chart import pods

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # stricter than the API for all kinds but Service
KINDS = {
    "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "Pod", "PodDisruptionBudget", "PodMonitor",
    "PrometheusRule", "ScaledObject", "Service", "ServiceMonitor", "StatefulSet",
}  # fmt: skip
RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def all_rules(found):
    """Everything below."""
    wrong = kinds(found) + names(found) + labels(found) + selectors(found) + ports(found) + references(found)
    for owner, template in pods(found):
        wrong += [f"{owner['metadata']['name']}: {text}" for text in restricted(template["spec"]) + ours(template["spec"])]
    for one in found:
        if one["kind"] == "Pod":
            wrong += [f"{one['metadata']['name']}: {text}" for text in restricted(one["spec"])]
    return wrong


def kinds(found):
    """No Roles, no accounts, no hooks but that of `helm test`: leader election is in NATS, and nothing has to run at
    installation."""
    wrong = [f"unexpected kind {one['kind']}" for one in found if one["kind"] not in KINDS]
    hooks = [one for one in found if one["metadata"].get("annotations", {}).get("helm.sh/hook", "test") != "test"]
    pods = [one for one in found if one["kind"] == "Pod" and "helm.sh/hook" not in one["metadata"].get("annotations", {})]
    return wrong + [f"a hook, or a bare pod: {one['metadata']['name']}" for one in hooks + pods]


def names(found):
    wrong = []
    seen = set()
    for one in found:
        kind, name = one["kind"], one["metadata"]["name"]
        if not isinstance(name, str) or not DNS_LABEL.fullmatch(name) or len(name) > 63:
            wrong.append(f"{kind}: bad name {name!r}")
        # A StatefulSet's pods carry its name and a digest of 10 characters in one label.
        if kind == "StatefulSet" and len(name) > 52:
            wrong.append(f"{kind}: name too long for a label: {name}")
        if (kind, name) in seen:
            wrong.append(f"{kind} {name} twice")
        seen.add((kind, name))
        if not one["metadata"].get("namespace"):
            wrong.append(f"{kind} {name}: no namespace")
    return wrong


def labels(found):
    """Values of labels and annotations are texts that the API accepts."""
    wrong = []
    metadata = [(one["metadata"]["name"], one["metadata"]) for one in found]
    metadata += [(owner["metadata"]["name"], template["metadata"]) for owner, template in pods(found)]
    for name, data in metadata:
        for key, value in data.get("labels", {}).items():
            if not isinstance(value, str) or len(value) > 63 or not re.fullmatch(r"([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?", value):
                wrong.append(f"{name}: label {key} is {value!r}")
        for key, value in data.get("annotations", {}).items():
            if not isinstance(value, str):
                wrong.append(f"{name}: annotation {key} is {value!r}")
    return wrong


def matches(selector, pod_labels):
    fits = selector.get("matchLabels", {}).items() <= pod_labels.items()
    return fits and all(
        pod_labels.get(term["key"]) in term["values"] for term in selector.get("matchExpressions", [])
    )


def selected(found, selector):
    return [owner for owner, template in pods(found) if matches(selector, template["metadata"]["labels"])]


def selectors(found):
    """Every selector finds pods, and only those it is for."""
    wrong = []
    for one in found:
        name, spec = one["metadata"]["name"], one.get("spec", {})
        if one["kind"] in ("Deployment", "StatefulSet"):
            chosen, expected = selected(found, spec["selector"]), [one]
        elif one["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            chosen = selected(found, spec.get("selector", spec.get("podSelector")))
            expected = [owner for owner, _ in pods(found) if owner["metadata"]["name"] == name]
        elif one["kind"] == "Service":
            chosen = selected(found, {"matchLabels": spec["selector"]})
            expected = [owner for owner, _ in pods(found) if owner["metadata"]["name"] == name]
        elif one["kind"] == "PodMonitor":
            chosen = selected(found, spec["selector"])
            is_split = any(other["kind"] == "ServiceMonitor" for other in found)
            roles = "-worker" if is_split else ROLES
            expected = [owner for owner, _ in pods(found) if owner["metadata"]["name"].endswith(roles)]
        elif one["kind"] == "ServiceMonitor":
            chosen = [other for other in found if other["kind"] == "Service" and matches(spec["selector"], other["metadata"]["labels"])]
            expected = [other for other in found if other["kind"] == "Service" and other["metadata"]["name"].endswith(ROLES)]
        elif one["kind"] in ("ScaledObject", "HorizontalPodAutoscaler"):
            target = spec["scaleTargetRef"]
            chosen = [other for other in found if other["kind"] == target["kind"] and other["metadata"]["name"] == target["name"]]
            expected = [other for other in found if other["metadata"]["name"].endswith("-worker") and other["kind"] == "Deployment"]
            # Two that count the same pods would quarrel.
            expected = [other for other in expected if "replicas" not in other["spec"]]
        else:
            continue
        if not expected or chosen != expected:
            wrong.append(f"{one['kind']} {name} selects {[owner['metadata']['name'] for owner in chosen]}")
    return wrong


ROLES = ("-producer", "-scheduler", "-worker")


def port_names(owner):
    return {port["name"] for container in owner["spec"]["template"]["spec"]["containers"] for port in container["ports"]}


def ports(found):
    """Ports named by probes, Services, PodMonitors and NetworkPolicies exist in the pods they are about."""
    wrong = []
    for one in found:
        name, spec = one["metadata"]["name"], one.get("spec", {})
        wanted = []
        if one["kind"] == "Service":
            chosen = selected(found, {"matchLabels": spec["selector"]})
            wanted = [(port["targetPort"], chosen) for port in spec["ports"]]
        elif one["kind"] == "ServiceMonitor":
            names = {port["name"] for other in found if other["kind"] == "Service" for port in other["spec"]["ports"]}
            wrong += [f"{name}: no port {end['port']}" for end in spec["endpoints"] if end["port"] not in names]
        elif one["kind"] == "PodMonitor":
            wanted = [(end["port"], selected(found, spec["selector"])) for end in spec["podMetricsEndpoints"]]
        elif one["kind"] == "NetworkPolicy":
            itself = selected(found, spec["podSelector"])
            wanted = [(port["port"], itself) for rule in spec["ingress"] for port in rule["ports"]]
            for rule in spec["egress"]:
                for peer in rule.get("to", []):
                    if "podSelector" in peer and "namespaceSelector" not in peer:
                        wanted += [(port["port"], selected(found, peer["podSelector"])) for port in rule["ports"]]
        elif one["kind"] in ("Deployment", "StatefulSet"):
            for container in spec["template"]["spec"]["containers"]:
                probes = [container[key] for key in container if key.endswith("Probe")]
                wanted += [(probe["httpGet"]["port"], [one]) for probe in probes]
        for port, owners in wanted:
            if not owners or not all(port in port_names(owner) for owner in owners):
                wrong.append(f"{one['kind']} {name}: no port {port!r} in {[o['metadata']['name'] for o in owners]}")
    return wrong


def references(found):
    """Mounted ConfigMaps exist, with the keys that are mounted; mounts have volumes and volumes have mounts."""
    wrong = []
    config_maps = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    for owner, template in pods(found):
        name, spec = owner["metadata"]["name"], template["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        claimed = {claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", [])}
        mounts = [mount for container in spec["containers"] for mount in container.get("volumeMounts", [])]
        if {mount["name"] for mount in mounts} != volumes.keys() | claimed:
            wrong.append(f"{name}: volumes {sorted(volumes.keys() | claimed)} and mounts do not agree")
        for mount in mounts:
            source = volumes.get(mount["name"], {}).get("configMap", {}).get("name")
            if source is not None and mount.get("subPath", next(iter(config_maps.get(source, [None])))) not in config_maps.get(source, {}):
                wrong.append(f"{name}: mounts {mount} of an absent ConfigMap {source}")
    return wrong


def restricted(spec):
    """Pod Security, profile restricted."""
    wrong = [f"{key} is on" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    pod = spec.get("securityContext", {})
    for volume in spec.get("volumes", []):
        if not volume.keys() - {"name"} <= RESTRICTED_VOLUMES:
            wrong.append(f"volume {volume}")
    for container in spec.get("initContainers", []) + spec["containers"]:
        own = container.get("securityContext", {})

        def effective(key, own=own):
            return own.get(key, pod.get(key))

        wrong += [f"hostPort {port}" for port in container.get("ports", []) if port.get("hostPort")]
        if own.get("privileged"):
            wrong.append("privileged")
        if own.get("allowPrivilegeEscalation") is not False:
            wrong.append("allowPrivilegeEscalation is not false")
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            wrong.append("capabilities are not dropped")
        if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
            wrong.append("capabilities are added")
        if effective("runAsNonRoot") is not True:
            wrong.append("runAsNonRoot is not true")
        if effective("runAsUser") == 0:
            wrong.append("runAsUser is 0")
        if (effective("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            wrong.append("no seccomp profile")
    return wrong


def ours(spec):
    """What Fairlane promises beyond the profile."""
    wrong = []
    if spec.get("automountServiceAccountToken") is not False:
        wrong.append("a token is mounted")
    if spec.get("enableServiceLinks") is not False:
        wrong.append("service links would add FAIRLANE_... variables")
    if spec["securityContext"].get("runAsUser") != 65532:
        wrong.append("the user is not 65532")
    for container in spec["containers"]:
        if container["securityContext"].get("readOnlyRootFilesystem") is not True:
            wrong.append("the root file system can be written")
        if "readinessProbe" not in container or "resources" not in container:
            wrong.append("no readiness probe or no resources")
        if "cpu" in container["resources"].get("limits", {}):
            wrong.append("a CPU limit")
    return wrong
