#!/usr/bin/env python3
"""image - the OCI image of the packages: its program, its user, and the names that pods use.

Goal: the archive of `make image` has digests that fit; ckptd in it starts as its own user with the
packages' configuration, and serves saves, loads and lists of ranks outside through the socket.
ckpt-cli and the trainer in it work; ckptd shuts down in order on request. Each program, folder and
image that deploy/kubernetes names is there. Method: podman, where it can run here; else the root
file system of the image in private namespaces (unshare), as the image's configuration says. The
names of the tests say which. Podman also plays the pods of deploy/kubernetes; Kubernetes itself is
not here. And it runs the image for a user who is not root, in that user's namespace. `make image`
comes first, as it needs a network, which a test does not have: step `long` of tests/check runs it.
"""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile

import lib_train
from lib_hosts import Refused, own_mounts, run
from lib_store import BUILD, CLI, PATIENCE, SAVER, comes, is_sanitized
from lib_tap import end, need, need_programs, skip, test

need("yaml")
import yaml  # noqa: E402

ARCHIVE = os.path.join(BUILD, "image/holdfast.tar")
LOAD_S = 600  # podman copies the image
STORE, SOCKET, DATA = "/var/lib/holdfast", "/run/holdfast", "/data"
TAG = "holdfast:latest"
SMALL = ("--memory.pool_bytes", "64MiB", "--memory.segment_bytes", "1MiB")
CATATONIT = "/usr/bin/catatonit", "/usr/libexec/podman/catatonit"  # holds a pod's namespaces
STEPS = 3
TINY = ("--training.steps", str(STEPS), "--training.seq_len", "64", "--training.local_batch_size",
        "1", "--canonical.micro_batches", "4", "--lr_scheduler.warmup_steps", "2")


def done(*words, **how):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          timeout=how.pop("timeout", PATIENCE), **how)


class Image:
    """The archive, unpacked."""

    def __init__(self, archive, folder):
        self.archive, self.root = archive, os.path.join(folder, "root")
        with tarfile.open(archive) as tar:
            tar.extractall(os.path.join(folder, "layout"))
        self.layout = os.path.join(folder, "layout")
        with open(os.path.join(self.layout, "index.json"), encoding="utf-8") as file:
            (entry,) = json.load(file)["manifests"]
        self.tag = entry["annotations"]["org.opencontainers.image.ref.name"]
        manifest = json.loads(self.blob(entry))
        self.spec = json.loads(self.blob(manifest["config"]))
        self.config = self.spec["config"]
        (layer,) = manifest["layers"]
        os.mkdir(self.root)
        run("tar", "--numeric-owner", "-xpf", self.path_of(layer), "-C", self.root)

    def path_of(self, entry):
        return os.path.join(self.layout, "blobs", *entry["digest"].split(":"))

    def blob(self, entry):
        with open(self.path_of(entry), "rb") as file:
            return file.read()

    def is_whole(self):
        blobs = glob.glob(os.path.join(self.layout, "blobs/sha256/*"))
        for path in blobs:
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != os.path.basename(path):
                    return False
        return len(blobs) == 3 and len(self.spec["rootfs"]["diff_ids"]) == 1


class Podman:
    """Containers of an image that podman has loaded into a store of the test's. The runtimes differ
    in which control groups of a machine they take."""

    def __init__(self, image, folder, mounts):
        self.base = ["podman", "--root", folder + "/containers", "--runroot", folder + "/podman",
                     "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]
        self.mounts = [word for there, here in mounts.items() for word in ("-v", f"{here}:{there}")]
        loaded = done(*self.base, "load", "-i", image.archive, timeout=LOAD_S)
        if loaded.returncode != 0:
            raise Refused(loaded.stderr.strip())
        self.image = loaded.stdout.split()[-1]
        why = "there is neither crun nor runc"
        for runtime, groups in (("crun", "disabled"), ("runc", "enabled")):
            self.how = ["--runtime", runtime, "run", "--rm", "--network", "none", "--cgroups",
                        groups, "--security-opt", "seccomp=unconfined", "--ulimit",
                        "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
            self.name = f"podman, {runtime}"
            if not shutil.which(runtime):
                continue
            tried = done(*self.command("/bin/true"), timeout=LOAD_S)
            if tried.returncode == 0:
                return
            why = tried.stderr.strip()
        raise Refused(why)

    def command(self, program, *words):
        """A program of it in place of its entry point; None: as the image says."""
        entry = ["--entrypoint", program] if program else []
        return [*self.base, *self.how, *self.mounts, *entry, self.image, *words]

    def close(self):
        subprocess.run([*self.base, "rmi", "--all", "--force"], capture_output=True, check=False)


class Namespaces:
    """The same without a container tool: separate mounts, process numbers and network."""

    name = "unshare"

    def __init__(self, image, _, mounts):
        self.image = image
        for there, here in mounts.items():
            os.makedirs(image.root + there, exist_ok=True)
            run("mount", "--bind", here, image.root + there)
        run("mount", "-t", "proc", "proc", image.root + "/proc")
        run("mount", "--rbind", "/dev", image.root + "/dev")

    def command(self, program, *words):
        config = self.image.config
        uid, gid = config["User"].split(":")
        entry = [program] if program else config["Entrypoint"]
        return ["unshare", "--net", "--ipc", "--root", self.image.root, "--setgid", gid, "--setuid",
                uid, "--wd", config["WorkingDir"], "env", "-i", *config["Env"], *entry,
                *(words or (() if program else config["Cmd"]))]

    def close(self):
        run("umount", "-R", "-l", self.image.root + "/dev")


def runner(image, folder, mounts):
    why = "podman is missing"
    if shutil.which("podman"):
        try:
            return Podman(image, folder, mounts)
        except (Refused, subprocess.TimeoutExpired) as error:
            why = f"podman cannot run here: {error}"
    print(f"# run by unshare in the image's root file system: {' '.join(why.split())[:300]}")
    return Namespaces(image, folder, mounts)


def is_made(image):
    config = image.config
    test("the digests of the archive fit",
         image.is_whole() and image.tag == TAG, image.spec)
    uid = int(config["User"].split(":")[0])
    owned = [os.stat(image.root + place).st_uid for place in (STORE, SOCKET)]
    test("its user is not root, and owns the folders of store and socket",
         uid > 0 and owned == [uid, uid] and config["Entrypoint"] == ["/usr/bin/ckptd"],
         (config, owned))


def versions(how):
    told = {name: done(*how.command("/usr/bin/" + name, "--version"), timeout=LOAD_S).stdout
            for name in ("ckptd", "ckpt-cli", "trainer")}
    wanted = done(CLI, "--version").stdout.split()[-1]
    test(f"ckptd, ckpt-cli and the trainer run in it ({how.name})",
         all(text.split()[-1:] == [wanted] for text in told.values()), (told, wanted))
    made = done(*how.command("/usr/bin/holdfast-certificates", "authority", "/tmp/authority"),
                timeout=LOAD_S)
    test("and holdfast-certificates makes an authority", made.returncode == 0, made)


def pods(image):
    named, places, images = set(), set(), set()
    for path in glob.glob("deploy/kubernetes/*.yaml"):
        with open(path, encoding="utf-8") as file:
            for one in yaml.safe_load_all(file):
                pod = (one.get("spec", {}).get("template") or {}).get("spec", {})
                for container in pod.get("containers", []) + pod.get("initContainers", []):
                    named.add(container["command"][0])
                    images.add(container["image"])
                    places |= {mount["mountPath"] for mount in container["volumeMounts"]}
    missing = [path for path in named if not os.access(image.root + path, os.X_OK)]
    test("each program that the pods of deploy/kubernetes start is in it, at that place",
         {"/usr/bin/ckptd", "/usr/bin/trainer"} <= named and not missing, (named, missing))
    test("they name this image, and its folders of store and socket",
         images == {TAG} and {STORE, SOCKET} <= places and set(image.config["Volumes"]) <= places,
         (images, places))


def serves(how, folder, config):
    log = os.path.join(folder, "log")
    with open(log, "wb") as out:
        ckptd = subprocess.Popen(how.command(None, *config["Cmd"], *SMALL), stdout=out, stderr=out)

    def said():
        with open(log, errors="replace") as file:
            return file.read()[-3000:]
    server = f"unix:{SOCKET}/ckptd.sock"
    try:
        up = comes(lambda: done(CLI, "health", "--server", server).returncode == 0)
        test(f"its entry point serves by the packages' configuration ({how.name})", up, said())
        saved = done(SAVER, "save", server, 2, 1, 1)
        loaded = done(SAVER, "load", server, 2, 1, 1)
        test("ranks outside, to whom its socket has the same path, save and load",
             (saved.returncode, loaded.returncode) == (0, 0), (saved, loaded, said()))
        words = lib_train.command(DATA, server, "book", "--comm.backend", "local",
                                  "--training.steps", 2)[1:]
        words[words.index("--metrics.loss_file") + 1] = "/tmp/loss"
        trained = done(*how.command("/usr/bin/trainer", *words), timeout=4 * PATIENCE)
        listed = done(*how.command("/usr/bin/ckpt-cli", "list", "book", "--server", server),
                      timeout=LOAD_S)
        test("the trainer in it trains and saves, and ckpt-cli in it lists that",
             trained.returncode == 0 and "book@2-a1" in listed.stdout,
             (trained.stderr[-2000:], listed, said()))
    finally:
        ckptd.send_signal(signal.SIGTERM)
        code = ckptd.wait(PATIENCE)
    whole = done(CLI, "verify", "--all", "--store", folder + "/store")
    test("told to end it ends in order, and what it saved is whole",
         (code, whole.returncode) == (0, 0), (code, whole, said()))


def as_pod(path, places, args, more):
    """The pod of a template of deploy/kubernetes, in this network and with the test's folders; of a
    job the one of index 0. Podman 4.3 removes an init container that it takes for `once` while that
    may still be running in its records: `always` leaves it."""
    with open(path, encoding="utf-8") as file:
        (one,) = yaml.safe_load_all(file)
    spec = one["spec"]["template"]["spec"]
    spec["hostNetwork"] = True
    for volume in spec["volumes"]:
        volume["hostPath"]["path"] = places[volume["hostPath"]["path"]]
    (container,) = spec["containers"]
    for option, value in args.items():
        container["args"][container["args"].index(option) + 1] = value
    container["args"] += more
    container.pop("ports", None)  # podman maps none in a network that is not the pod's
    probes = {container.pop(name)["httpGet"]["path"]  # it has systemd run them
              for name in list(container) if name.endswith("Probe")}
    job, name = "batch.kubernetes.io/job-", one["metadata"]["name"]
    metadata = {**one["metadata"], "labels": {job + "name": name}, "annotations": {
        job + "completion-index": "0", "io.podman.annotations.init.container.type": "always"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, probes


PLAYED = ["the pod of ckptd.yaml serves, its folders made by its init container",
          "and answers its probes", "the pod of train.yaml trains, saves and ends with 0",
          "it has its job's name for a token", "when the pods are taken down the store is whole"]


def plays(how, folder, places):
    """The pods of deploy/kubernetes: ckptd, and a training job beside it."""
    limits = os.path.join(folder, "containers.conf")
    with open(limits, "w", encoding="utf-8") as file:
        file.write('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n')
    kube = ["env", "CONTAINERS_CONF=" + limits, *how.base, "--runtime", how.name.split()[-1],
            "kube"]
    ckptd, probes = as_pod("deploy/kubernetes/ckptd.yaml", places, dict([SMALL[:2]]), SMALL[2:])
    train, _ = as_pod("deploy/kubernetes/train.yaml", places, {}, TINY)
    files = {}
    for name, pod in (("ckptd", ckptd), ("train", train)):
        files[name] = os.path.join(folder, name + ".yaml")
        with open(files[name], "w", encoding="utf-8") as file:
            yaml.safe_dump(pod, file)

    def logs(container):
        return done(*how.base, "logs", container).stderr[-3000:]
    server = f"unix:{SOCKET}/ckptd.sock"
    played = done(*kube, "play", files["ckptd"], timeout=LOAD_S)
    up = comes(lambda: done(CLI, "health", "--server", server).returncode == 0)
    test(PLAYED[0],
         played.returncode == 0 and up, (played, logs("ckptd-ckptd")))
    answers = {probe: done("curl", "-sf", "http://127.0.0.1:9464" + probe).returncode
               for probe in probes}
    test(PLAYED[1], set(answers.values()) == {0} and len(answers) == 2, answers)
    played = done(*kube, "play", files["train"], timeout=LOAD_S)
    code = done(*how.base, "wait", "book-trainer", timeout=4 * PATIENCE).stdout.strip()
    listed = done(CLI, "list", "book", "--server", server)
    given = done(*how.base, "inspect", "--format", "{{.Config.Env}}", "book-trainer").stdout
    test(PLAYED[2],
         (played.returncode, code) == (0, "0") and f"book@{STEPS}-a" in listed.stdout,
         (played, code, listed, logs("book-trainer")))
    test(PLAYED[3], "HOLDFAST_LAUNCH_TOKEN=book" in given, given)
    downs = [done(*kube, "down", files[name], timeout=LOAD_S) for name in ("train", "ckptd")]
    whole = done(CLI, "verify", "--all", "--store", places[STORE])
    test(PLAYED[4],
         (*(down.returncode for down in downs), whole.returncode) == (0, 0, 0), (downs, whole))


ROOTLESS = ["podman of a user who is not root runs ckptd, in folders that :U gives it",
            "and the trainer beside it trains and saves",
            "told to end it ends in order, and the store has what was saved"]
UID, SUBIDS = 4242, 200000


class Rootless:
    """A user with subordinate ids, and the user's podman. Their files and the home are there only
    in this mount namespace."""

    def __init__(self, folder, how):
        self.folder, self.home = folder, "/mnt"
        run("mount", "--bind", folder, self.home)
        for name in ("run", "store", "socket", "data"):
            os.mkdir(os.path.join(folder, name), 0o700)
        os.chown(folder, UID, UID)
        for name in os.listdir(folder):
            os.chown(os.path.join(folder, name), UID, UID)
        for name, line in (("passwd", f"ordinary:x:{UID}:{UID}::{self.home}:/bin/sh\n"),
                           ("subuid", f"ordinary:{SUBIDS}:65536\n"),
                           ("subgid", f"ordinary:{SUBIDS}:65536\n")):
            self.replace(name, line)
        self.podman = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env", "-i",
                       "-C", self.home, f"HOME={self.home}", f"XDG_RUNTIME_DIR={self.home}/run",
                       "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "podman", "--storage-driver", "vfs",
                       "--cgroup-manager", "cgroupfs"]
        volumes = ((STORE, "store"), (SOCKET, "socket"), (DATA, "data"))
        self.run = [*how, *(word for there, here in volumes
                            for word in ("-v", f"{self.home}/{here}:{there}:U"))]

    def replace(self, name, line):
        path = os.path.join("/etc", name)
        if not os.path.exists(path):
            raise Refused(f"{path} is missing")
        with open(path, encoding="utf-8") as file, \
                open(os.path.join(self.folder, name), "w", encoding="utf-8") as copy:
            copy.write(file.read() + line)
        run("mount", "--bind", copy.name, path)

    def do(self, *words, **how):
        return done(*self.podman, *words, **{"timeout": LOAD_S, **how})

    def close(self):
        self.do("rm", "--all", "--force", "--time", "0")
        self.do("system", "migrate")  # ends the process that keeps the user's namespace
        for path in ("/etc/passwd", "/etc/subuid", "/etc/subgid", self.home):
            subprocess.run(["umount", "-l", path], capture_output=True, check=False)


def is_rootless(how, folder, archive):
    home = os.path.join(folder, "ordinary")
    os.mkdir(home)
    user = Rootless(home, how.how)
    try:
        shutil.copy(os.path.join(folder, "data/tokens"), os.path.join(home, "data"))
        os.chown(os.path.join(home, "data/tokens"), UID, UID)
        with open(archive, "rb") as file:
            loaded = user.do("load", stdin=file)
        if loaded.returncode != 0:
            skip(ROOTLESS, "no podman without root: " + " ".join(loaded.stderr.split())[-200:])
            return
        started = user.do(*user.run, "--detach", "--name", "ckptd", TAG, "--config",
                          "/etc/holdfast/ckptd.conf", *SMALL)
        server = f"unix:{SOCKET}/ckptd.sock"

        def inside(*words):
            return user.do("exec", "ckptd", *words)
        up = comes(lambda: inside("ckpt-cli", "health", "--server", server).returncode == 0)
        owner = os.stat(os.path.join(home, "store")).st_uid
        test(ROOTLESS[0], up and owner > SUBIDS, (started, user.do("logs", "ckptd"), owner))
        words = lib_train.command(DATA, server, "book", "--comm.backend", "local",
                                  "--training.steps", 2)[1:]
        words[words.index("--metrics.loss_file") + 1] = "/tmp/loss"
        trained = inside("trainer", *words)
        listed = inside("ckpt-cli", "list", "book", "--server", server).stdout
        test(ROOTLESS[1], trained.returncode == 0 and "book@2-a1" in listed, (trained, listed))
        stopped = user.do("stop", "ckptd")
        whole = done(CLI, "verify", "--all", "--store", os.path.join(home, "store"))
        test(ROOTLESS[2], (stopped.returncode, whole.returncode) == (0, 0) and
             glob.glob(home + "/store/book/step-*"), (stopped, whole))
    finally:
        user.close()


def main():
    need_programs("unshare")
    if is_sanitized() or not os.path.exists(ARCHIVE):
        print(f"there is no {ARCHIVE}: make image, of programs without sanitizers")
        sys.exit(77)
    folder, how = tempfile.mkdtemp(prefix="im-", dir=os.environ.get("TMPDIR", "/var/tmp")), None
    try:
        own_mounts()
        image = Image(ARCHIVE, folder)
        is_made(image)
        pods(image)
        uid = int(image.config["User"].split(":")[0])
        mounts = {STORE: folder + "/store", SOCKET: folder + "/run", DATA: folder + "/data"}
        for path in mounts.values():
            os.mkdir(path)
            os.chown(path, uid, uid)
        lib_train.make_tokens(folder + "/data", lib_train.prose())
        os.makedirs(SOCKET, exist_ok=True)
        run("mount", "--bind", mounts[SOCKET], SOCKET)
        how = runner(image, folder, mounts)
        versions(how)
        serves(how, folder, image.config)
        if isinstance(how, Podman) and shutil.which("newuidmap"):
            is_rootless(how, folder, image.archive)
        else:
            skip(ROOTLESS, "newuidmap is missing" if isinstance(how, Podman) else
                 "podman cannot run here")
        if not isinstance(how, Podman) or not any(map(os.path.exists, CATATONIT)):
            skip(PLAYED, "podman cannot run here" if not isinstance(how, Podman) else
                 "catatonit is missing")
        else:
            shutil.rmtree(mounts[STORE])
            os.rename(folder + "/data/tokens", folder + "/data/book.tokens")
            plays(how, folder, mounts)
    except Refused as why:
        print(f"no image can be made, or run, here: {why}")
        sys.exit(77)
    finally:
        if how:
            how.close()
        for path in (SOCKET, *glob.glob(folder + "/root/*"), folder + "/root"):
            subprocess.run(["umount", "-R", "-l", path], capture_output=True, check=False)
        with contextlib.suppress(OSError):
            os.rmdir(SOCKET)
        shutil.rmtree(folder, ignore_errors=True)
    end()


main()
