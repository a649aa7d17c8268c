#!/usr/bin/env python3
"""dashboards - the files of deploy/ for Grafana and Kubernetes match the programs.

Goal: every metric that the dashboard draws is exported; ckptd answers the requests of probes and
Prometheus' annotations. The manifests parse, have no unknown field, mount the volumes that they
name, and their command lines are valid. Method: a real ckptd; the command lines of the manifests
are run with other paths: `ckptd --check`, and the trainer for two steps.
"""

import json
import os
import re
import subprocess
import sys
import urllib.request

from lib_nodes import free_port
from lib_store import BUILD, PATIENCE, World, comes, make_tier
from lib_tap import end, need, skip, test
from lib_train import make_tokens, prose

need("yaml")
import yaml  # noqa: E402


# Of nodes, TLS, and minutes of saves: check_prometheus.py looks for these.
NOT_HERE = re.compile("holdfast_(node|replication|tls|disk_hours)_")


def exported(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        return set(re.findall(r"^(holdfast_\w+)", answer.read().decode(), re.M))


def dashboard(port):
    with open("deploy/grafana/ckptd.json") as file:
        panels = json.load(file)["panels"]
    drawn = {name for panel in panels for target in panel["targets"]
             for name in re.findall(r"holdfast_\w+", target["expr"])}
    drawn = {name for name in drawn if not NOT_HERE.match(name)}
    comes(lambda: drawn <= exported(port))  # once the checkpoint is in the far tier
    test("every metric that the dashboard draws is exported", len(panels) > 5 and
         drawn <= exported(port), drawn - exported(port))


def manifests():
    """By their kinds; none of those is there twice."""
    found = []
    for name in os.listdir(KUBERNETES):
        with open(os.path.join(KUBERNETES, name)) as file:
            found += yaml.safe_load_all(file)
    by_kind = {one["kind"]: one for one in found}
    assert len(by_kind) == len(found), by_kind.keys()
    return by_kind


def manifest(name, kind):
    found = manifests()[kind]
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {one["name"] for one in pod["volumes"]}
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    used = [re.sub("^unix:", "", word) for word in container["args"] if "/" in word]
    test(f"{name} mounts every path that it names, and each of its volumes",
         {one["name"] for one in container["volumeMounts"]} == volumes and used and
         all(any(path.startswith(at) for at in mounts) for path in used), (used, mounts, volumes))
    program = os.path.join(BUILD, os.path.basename(container["command"][0]))
    return found["spec"], container, [program, *container["args"]]


def put(words, **instead):
    for old, new in instead.items():
        words = [new if word == OLD[old] else word for word in words]
    return words


KUBERNETES = "deploy/kubernetes"
OLD = {"server": "unix:/run/holdfast/ckptd.sock", "store": "/var/lib/holdfast",
       "tokens": "/data/book.tokens"}


def asked(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
        return answer.status


def daemon(world, port):
    found, container, words = manifest("ckptd.yaml", "DaemonSet")
    words = put(words, server=world.server + "2", store=world.folder + "/other")
    done = subprocess.run([*words, "--check"], capture_output=True, text=True, timeout=PATIENCE)
    test("the command line of ckptd is a good one", done.returncode == 0, done.stdout + done.stderr)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    listens = int(words[words.index("--http.listen") + 1].rpartition(":")[2])
    paths = [container[probe]["httpGet"] for probe in
             ("startupProbe", "livenessProbe", "readinessProbe")]
    pod = found["template"]["metadata"]["annotations"]
    test("and so are its probes and what Prometheus reads",
         {ports[path["port"]] for path in paths} | {int(pod["prometheus.io/port"])} == {listens} and
         [asked(port, path) for path in [*(path["path"] for path in paths),
                                         pod["prometheus.io/path"]]] == [200] * 4, (paths, pod))


def job(world):
    spec, _, words = manifest("train.yaml", "Job")
    make_tokens(world.folder, prose())
    words = put(words, server=world.server, tokens=os.path.join(world.folder, "tokens"))
    done = subprocess.run([*words, "--training.steps", "2", "--training.seq_len", "64",
                           "--training.local_batch_size", "1"],
                          capture_output=True, text=True, timeout=4 * PATIENCE)
    test("the job's command line trains and saves", done.returncode == 0 and
         "book@2-a1" in world.cli("list", "book", *world.where)[1], done.stderr)
    rule, evicted = spec["podFailurePolicy"]["rules"]
    code = subprocess.run([*words, "--training.steps", "many"], capture_output=True,
                          timeout=PATIENCE).returncode
    test("where a person must act it is not started again", rule["action"] == "FailJob" and
         rule["onExitCodes"]["values"] == [code], (code, rule))
    test("and an eviction counts as no failure", evicted ==
         {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}, evicted)


def names():
    """Of fields, by Kubernetes' schemas; kinds of the Prometheus Operator have none there."""
    told = "Kubernetes knows every field of the manifests"
    python = os.environ.get("PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import kubernetes_validate"], capture_output=True).returncode:
        skip([told], "no kubernetes-validate")
        return
    files = [os.path.join(KUBERNETES, name) for name in sorted(os.listdir(KUBERNETES))
             if name != "kustomization.yaml"]
    done = subprocess.run([python, "-m", "kubernetes_validate", "--strict", *files],
                          capture_output=True, text=True, timeout=PATIENCE)
    test(told, files and done.returncode == 0, done.stdout + done.stderr)


def beside():
    """The objects beside the DaemonSet select its pods."""
    found = manifests()
    pod = found["DaemonSet"]["spec"]["template"]
    labels, service = pod["metadata"]["labels"], found["Service"]
    monitor, budget = found["ServiceMonitor"]["spec"], found["PodDisruptionBudget"]["spec"]
    (port,), (endpoint,) = service["spec"]["ports"], monitor["endpoints"]
    test("the monitor and the budget are of ckptd's pods",
         budget["selector"]["matchLabels"] == service["spec"]["selector"] == labels and
         monitor["selector"]["matchLabels"] == service["metadata"]["labels"] and
         endpoint["port"] == port["name"] and
         endpoint["path"] == pod["metadata"]["annotations"]["prometheus.io/path"] and
         port["targetPort"] in [one["name"] for one in
                                pod["spec"]["containers"][0]["ports"]], (service, monitor, budget))
    files = found["Kustomization"]["resources"]
    test("the kustomization names files that are there",
         files and all(os.path.exists(os.path.join(KUBERNETES, name)) for name in files), files)


def main():
    world = World()
    names()
    beside()
    port, far = free_port("127.0.0.1"), os.path.join(world.folder, "far")
    make_tier(world.folder, far)
    try:
        world.launch("--http.listen", f"127.0.0.1:{port}", "--tier.store", f"dir:{far}")
        world.save((1,))
        dashboard(port)
        daemon(world, port)
        job(world)
    finally:
        world.close()
    end()


main()
