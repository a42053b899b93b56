"""deploy/nats/chart-values.yaml without the chart it is for, which no package registry has: the configuration that the chart makes of
exactly these values, as far as its own tests tell (release 2.14.6), and three servers started with it.

Whatever is not known here is refused, so that nobody adds a value and thinks that it is tested.
"""

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import yaml

from chart import ROOT
from live import START_SECONDS_MAX, STOP_SECONDS_MAX, free_port

VALUES = ROOT / "deploy" / "nats" / "chart-values.yaml"
RELEASE = "nats"
# Values that have no part in the configuration of the server.
ELSEWHERE = {
    "container": {"image", "env", "merge", "patch"},
    "podTemplate": {"topologySpreadConstraints", "patch"},
    "natsBox": {"enabled"},
}


class Unknown(Exception):
    """A value that this module does not know what to do with."""


def taken(tree, *keys):
    """The values under these keys; refuses others."""
    others = set(tree) - set(keys)
    if others:
        raise Unknown(f"{sorted(others)} beside {keys}")
    return [tree.get(key) for key in keys]


def unit(size):
    """A size in the server's own notation, which is no text of JSON."""
    return f"<< {size} >>"


def tls(tree, folder, ca):
    enabled, secret, merge = taken(tree, "enabled", "secretName", "merge")
    assert enabled and secret
    made = {"cert_file": f"/etc/nats-certs/{folder}/tls.crt", "key_file": f"/etc/nats-certs/{folder}/tls.key"}
    return made | ({"ca_file": "/etc/nats-ca-cert/ca.crt"} if ca else {}) | (merge or {})


def configuration(values):
    """What nats.conf says, as a tree."""
    config, ca, container, pod, box = taken(values, "config", "tlsCA", "container", "podTemplate", "natsBox")
    for name, part in (("container", container), ("podTemplate", pod), ("natsBox", box)):
        taken(part, *ELSEWHERE[name])
    cluster, nats, jetstream, merge = taken(config, "cluster", "nats", "jetstream", "merge")
    enabled, replicas, cluster_tls = taken(cluster, "enabled", "replicas", "tls")
    [nats_tls] = taken(nats, "tls")
    js_enabled, file_store, memory_store, js_merge = taken(jetstream, "enabled", "fileStore", "memoryStore", "merge")
    pvc, file_max = taken(file_store, "pvc", "maxSize")
    taken(pvc, "size", "storageClassName")
    memory_enabled, memory_max = taken(memory_store, "enabled", "maxSize")
    ca_enabled, _ = taken(ca, "enabled", "secretName")
    assert enabled and js_enabled and memory_enabled
    return {
        "server_name": "<< $SERVER_NAME >>",
        "lame_duck_grace_period": "10s",
        "lame_duck_duration": "30s",
        "pid_file": "/var/run/nats/nats.pid",
        "port": 4222,
        "tls": tls(nats_tls, "nats", ca_enabled),
        "cluster": {
            "name": RELEASE,
            "port": 6222,
            "no_advertise": True,
            "routes": [f"tls://{RELEASE}-{at}.{RELEASE}-headless:6222" for at in range(replicas)],
            "tls": tls(cluster_tls, "cluster", ca_enabled),
        },
        "http_port": 8222,
        "jetstream": {
            "max_memory_store": unit(memory_max),
            "store_dir": "/data",
            "max_file_store": unit(file_max or pvc["size"]),
            **js_merge,
        },
        **merge,
    }


def text(tree):
    """The tree as the chart writes it: JSON, but for includes and for what stands in << >>."""
    made = json.dumps(tree, indent=2, sort_keys=True)
    made = re.sub(r'"[^"]*\$include": "([^"]*)",?', r"include \1;", made)
    return re.sub(r'"<< (.*?) >>"', r"\1", made)


def bytes_of(size):
    number, power = re.fullmatch(r"(\d+)([MG])i", size).groups()
    return int(number) << {"M": 20, "G": 30}[power]


def mounts(values):
    """Where a Secret of its own is mounted: {path: Secret}, by what is patched into container and pod."""
    volumes = {one["value"]["name"]: one["value"]["secret"]["secretName"] for one in values["podTemplate"]["patch"]}
    return {one["value"]["mountPath"]: volumes[one["value"]["name"]] for one in values["container"]["patch"]}


def three_servers_take_the_objects(program):
    """Starts the servers, and has the operator make everything in three copies, over TLS."""
    values = yaml.safe_load(VALUES.read_text())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certify(folder)
        run(program, "auth", "--out", folder / "auth")
        tree = configuration(values)
        count = len(tree["cluster"]["routes"])
        ports = [(free_port(), free_port(), free_port()) for _ in range(count)]
        for at in range(count):
            start(stack, folder, at, tree, ports)
        url = ",".join(f"tls://localhost:{port}" for port, _, _ in ports)
        settings = {"nats.nkey_file": folder / "auth" / "operator.nk", "nats.tls_ca_file": folder / "ca.crt", "nats.replicas": count}
        given = [f"--set={key}={value}" for key, value in settings.items()]
        # The servers find each other first.
        end = time.monotonic() + START_SECONDS_MAX
        while (told := run(program, "init", "--nats-url", url, *given, may_fail=True)) and " 0 differences" not in told:
            assert time.monotonic() < end, told + "".join((folder / f"{at}.log").read_text()[-2_000:] for at in range(count))


def run(*command, may_fail=False):
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert may_fail or ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


def certify(folder):
    """An authority and a certificate with the names that the head of the values file asks for."""
    names = f"DNS:localhost,DNS:{RELEASE}.{RELEASE},DNS:*.{RELEASE}-headless"
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    run(*new, "-x509", "-days", "2", "-subj", "/CN=authority", "-out", folder / "ca.crt", "-keyout", folder / "ca.key")
    run(*new, "-subj", "/CN=nats", "-out", folder / "tls.csr", "-keyout", folder / "tls.key")
    (folder / "ext").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    sign = ["openssl", "x509", "-req", "-days", "2", "-in", folder / "tls.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key"]
    run(*sign, "-CAcreateserial", "-extfile", folder / "ext", "-out", folder / "tls.crt")


def start(stack, folder, at, tree, ports):
    """One server with this configuration, on loopback and in this folder; waits until it is ready."""
    own = json.loads(json.dumps(tree))
    port, monitor, routes = ports[at]
    own |= {"port": port, "http_port": monitor, "host": "127.0.0.1", "pid_file": str(folder / f"{at}.pid")}
    # By a name that the certificate has.
    own["cluster"] |= {"port": routes, "host": "127.0.0.1", "routes": [f"tls://localhost:{other}" for _, _, other in ports]}
    own["jetstream"]["store_dir"] = str(folder / f"data-{at}")
    written = text(own)
    for there, here in (("/etc/nats-certs/nats/", folder), ("/etc/nats-certs/cluster/", folder), ("/etc/nats-ca-cert/", folder)):
        written = written.replace(there, f"{here}/")
    (folder / f"{at}.conf").write_text(written)
    log = stack.enter_context((folder / f"{at}.log").open("w"))
    environment = {**os.environ, "SERVER_NAME": f"{RELEASE}-{at}"}
    server = subprocess.Popen(
        [os.environ["NATS_SERVER"], "--config", str(folder / f"{at}.conf")], stdout=log, stderr=log, env=environment
    )
    stack.callback(server.wait, STOP_SECONDS_MAX)
    stack.callback(server.kill)
    end = time.monotonic() + START_SECONDS_MAX
    while "Server is ready" not in (folder / f"{at}.log").read_text():
        assert server.poll() is None and time.monotonic() < end, (folder / f"{at}.log").read_text()
        time.sleep(0.05)
