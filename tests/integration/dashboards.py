#!/usr/bin/env python3
"""dashboards - the files of deploy/ for Grafana and Kubernetes match the programs.

Goal: every metric that the dashboard draws is exported; ckptd answers the requests of probes and
Prometheus' annotations. The manifests parse, have no unknown field, mount the volumes that they
name, and their command lines are valid. A job starts its pods again by the exit codes of the
launcher. Method: a real ckptd; the command lines of the manifests are run with other paths: `ckptd
--check`, and the trainer for two steps. The pods of train-gpu.yaml are processes with simulated
GPUs, which get the variables that Kubernetes would give each. `kubectl kustomize` makes an overlay.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request

from lib_nodes import free_port
from lib_store import BUILD, PATIENCE, World, comes, make_tier
from lib_tap import end, need, skip, test
from lib_train import Trainer, make_tokens, prose

need("yaml")
import yaml  # noqa: E402
sys.path += ["deploy", "tests/s3"]
sys.dont_write_bytecode = True
import launch_rules as rules  # noqa: E402
from lib_server import Server  # noqa: E402


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


def documents(name):
    """Of a file, by their kinds."""
    with open(os.path.join(KUBERNETES, name)) as file:
        found = list(yaml.safe_load_all(file))
    by_kind = {one["kind"]: one for one in found}
    assert len(by_kind) == len(found), by_kind.keys()
    return by_kind


def manifest(name, kind):
    found = documents(name)[kind]
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


KUBERNETES, CERTIFICATES = "deploy/kubernetes", "deploy/certificates"
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


def variables(name, index):
    """What the pod of an index of the job gets; the job's controller sets its label and annotation.
    """
    job = documents(name)["Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    told = {"metadata.labels['batch.kubernetes.io/job-name']": job["metadata"]["name"],
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index)}
    return {one["name"]: one["value"] if "value" in one else
            told[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container["env"]}


def starts_again(name, spec, stops):
    """stops: the exit code of a pod whose operator must act."""
    stop, again, evicted = spec["podFailurePolicy"]["rules"]
    test(f"{name}: where a person must act it is not started again", stop["action"] == "FailJob" and
         stop["onExitCodes"]["values"] == [stops] == [rules.NO_RETRY], (stops, stop))
    test("what the launcher starts again, and an eviction, count as no failure",
         again["action"] == "Ignore" and set(again["onExitCodes"]["values"]) ==
         {rules.RUN_AGAIN, rules.TIME_IS_OVER} and evicted ==
         {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}, (again, evicted))
    test("each pod has an index, and the job's token", spec["completionMode"] == "Indexed" and
         spec["completions"] == spec["parallelism"] and
         [variables(name, index).get("HOLDFAST_LAUNCH_TOKEN") for index in (0, 1)] == ["book"] * 2)


SMALL = ("--training.steps", "2", "--training.seq_len", "64", "--training.local_batch_size", "1")


def job(world):
    spec, _, words = manifest("train.yaml", "Job")
    words = put(words, server=world.server, tokens=os.path.join(world.folder, "tokens"))
    environment = {**os.environ, **variables("train.yaml", 0)}
    done = subprocess.run([*words, *SMALL], capture_output=True, text=True, env=environment,
                          timeout=4 * PATIENCE)
    test("the job's command line trains and saves", done.returncode == 0 and
         "book@2-a1" in world.cli("list", "book", *world.where)[1], done.stderr)
    code = subprocess.run([*words, "--training.steps", "many"], capture_output=True,
                          timeout=PATIENCE).returncode
    starts_again("train.yaml", spec, code)


def pods_with_gpus(world):
    """Their names are those that the Service gives: here a free port of this machine."""
    name, told = "train-gpu.yaml", "its pods train over TCP as one run, and save"
    spec, container, words = manifest(name, "Job")
    service, pod, ranks = documents(name)["Service"], spec["template"], spec["completions"]
    starts_again(name, spec, rules.NO_RETRY)
    host = f"{documents(name)['Job']['metadata']['name']}-0.{pod['spec']['subdomain']}"
    environments = [variables(name, index) for index in range(ranks)]
    test("they find each other by a service without an address, and have a GPU each",
         {one["MASTER_ADDR"] for one in environments} == {host} and
         pod["spec"]["subdomain"] == service["metadata"]["name"] and
         service["spec"]["clusterIP"] == "None" and
         service["spec"]["selector"].items() <= pod["metadata"]["labels"].items() and
         [(one["RANK"], one["WORLD_SIZE"]) for one in environments] ==
         [(str(index), str(ranks)) for index in range(ranks)] and
         container["resources"]["limits"] == {"nvidia.com/gpu": 1}, (host, environments))
    program = os.path.join(BUILD, "tests/trainer_on_simgpu")
    if not os.path.exists(program):
        skip([told], "NVIDIA's headers are not here: make deps-cuda gets them")
        return
    folder = os.path.join(world.folder, "gpus")
    os.mkdir(folder)
    words = [program, *put(words, server=world.server,
                           tokens=os.path.join(world.folder, "tokens"))[1:], "--job.run", "gpus",
             *SMALL, "--canonical.micro_batches", "4"]
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1")),
            "SIMGPU": f"devices=1,seed=0,folder={folder}"}
    pods = [Trainer(words, env={**os.environ, **one, **here}) for one in environments]
    said = [one.communicate(timeout=8 * PATIENCE)[1] for one in pods]
    test(told, [one.returncode for one in pods] == [0] * ranks and
         "gpus@2-a1" in world.cli("list", "gpus", *world.where)[1], said)


def overlay(world):
    """As an operator makes one of the base and both components."""
    told = ["kubectl makes an overlay with both components: a monitor, and no annotations",
            "each pod mounts the ConfigMap of that name",
            "each node's command line and file are good"]
    if not shutil.which("kubectl"):
        skip(told, "no kubectl")
        return
    folder = os.path.join(world.folder, "overlay")
    shutil.copytree(KUBERNETES, os.path.join(world.folder, "kubernetes"))
    os.mkdir(folder)
    with open(os.path.join(folder, "kustomization.yaml"), "w") as file:
        yaml.safe_dump({"resources": ["../kubernetes"], "components": [
            "../kubernetes/monitored", "../kubernetes/configured"]}, file)
    made = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True,
                          timeout=PATIENCE)
    found = {one["kind"]: one for one in yaml.safe_load_all(made.stdout)}
    template = found["DaemonSet"]["spec"]["template"]
    test(told[0], made.returncode == 0 and "ServiceMonitor" in found and
         "annotations" not in template["metadata"], made)
    files = found["ConfigMap"]
    (container,), pod = template["spec"]["containers"], template["spec"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    test(told[1], volumes["nodes"]["configMap"]["name"] == files["metadata"]["name"] and
         mounts.keys() == volumes.keys() and is_known(made.stdout), (volumes, mounts, files))
    bucket = Server()
    refused = [check(world, folder, container, bucket.environment, name, text)
               for name, text in files["data"].items()]
    bucket.close()
    test(told[2], len(refused) == 3 and not any(refused), refused)


def check(world, folder, container, secret, name, text):
    """ckptd --check as on a node, with its certificate; what it said if it refused."""
    node = name.removesuffix(".conf")
    tls = os.path.join(folder, node)
    if not os.path.exists(os.path.join(folder, "ca")):
        subprocess.run([CERTIFICATES, "authority", os.path.join(folder, "ca")], check=True)
    subprocess.run([CERTIFICATES, "issue", os.path.join(folder, "ca"), tls,
                    f"holdfast://node/{node}", "127.0.0.1"], check=True, capture_output=True)
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)
    words = [word.replace("$(NODE)", node).replace("/etc/holdfast/nodes", folder)
             for word in put(container["args"], server=world.server + "3",
                             store=os.path.join(world.folder, node))]
    done = subprocess.run([os.path.join(BUILD, "ckptd"), *words, "--tls.directory", tls, "--check"],
                          capture_output=True, text=True, timeout=PATIENCE,
                          env={**os.environ, **secret})
    return done.returncode and done.stdout + done.stderr


def is_known(text):
    """Has no field that Kubernetes does not know; true without its schemas, which names() tells."""
    python = os.environ.get("PYTHON", sys.executable)
    done = subprocess.run([python, "-c", "import kubernetes_validate"], capture_output=True)
    return done.returncode or subprocess.run(
        [python, "-m", "kubernetes_validate", "--strict", "-"], input=text, text=True,
        capture_output=True, timeout=PATIENCE).returncode == 0


def names():
    """Of fields, by Kubernetes' schemas; kinds of the Prometheus Operator have none there."""
    told = "Kubernetes knows every field of the manifests"
    python = os.environ.get("PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import kubernetes_validate"], capture_output=True).returncode:
        skip([told], "no kubernetes-validate")
        return
    files = [path for path in sorted(glob.glob(KUBERNETES + "/**/*.yaml", recursive=True))
             if os.path.basename(path) != "kustomization.yaml"]
    done = subprocess.run([python, "-m", "kubernetes_validate", "--strict", *files],
                          capture_output=True, text=True, timeout=PATIENCE)
    test(told, files and done.returncode == 0, done.stdout + done.stderr)


def beside():
    """The objects beside the DaemonSet select its pods."""
    pod = documents("ckptd.yaml")["DaemonSet"]["spec"]["template"]
    found = documents("monitored/monitor.yaml")
    labels, service, monitor = (pod["metadata"]["labels"], found["Service"],
                                found["ServiceMonitor"]["spec"])
    budget = documents("disruption.yaml")["PodDisruptionBudget"]["spec"]
    (port,), (endpoint,) = service["spec"]["ports"], monitor["endpoints"]
    test("the monitor and the budget are of ckptd's pods",
         budget["selector"]["matchLabels"] == service["spec"]["selector"] == labels and
         monitor["selector"]["matchLabels"] == service["metadata"]["labels"] and
         endpoint["port"] == port["name"] and
         endpoint["path"] == pod["metadata"]["annotations"]["prometheus.io/path"] and
         port["targetPort"] in [one["name"] for one in
                                pod["spec"]["containers"][0]["ports"]], (service, monitor, budget))
    files = documents("kustomization.yaml")["Kustomization"]["resources"]
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
        make_tokens(world.folder, prose())
        job(world)
        pods_with_gpus(world)
        overlay(world)
    finally:
        world.close()
    end()


main()
