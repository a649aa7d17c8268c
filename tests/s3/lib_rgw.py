"""lib_rgw.py - Ceph's RADOS gateway, a real S3 server, from the distribution: as plain processes in
one folder, ready in some three seconds.

    with Gateway(folder) as gateway:      # or Gateway(folder, tls=True)
        gateway.environment               # AWS_* and HOLDFAST_S3_* for a program of ours
    sys.exit(main(tell))                  # a whole script: tell(folder, gateway)

Method: one monitor, one OSD on memory, one gateway; no authentication between them; shortened
intervals of the monitor. A command sent before the monitor has its quorum fails, so it is asked
first. Removed or replaced objects leave the memory some seconds later. By default they stay for two
hours, and a gateway whose memory is full answers no write. All processes are ended by process id.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

CONFIG = """[global]
fsid = {fsid}
mon host = v1:127.0.0.1:{mon_port}
auth cluster required = none
auth service required = none
auth client required = none
ms bind msgr2 = false
ms bind ipv4 = true
ms bind port min = {low_port}
ms bind port max = {high_port}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
mon initial members = a
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon allow pool delete = true
run dir = {folder}/run
admin socket = {folder}/run/$cluster-$name.asok
log file = {folder}/$name.log
pid file = {folder}/run/$name.pid
osd pool default pg autoscale mode = off
paxos propose interval = 0.05
paxos min wait = 0.01
osd class update on start = false
osd crush update on start = false
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
osd journal = {folder}/osd/journal
osd objectstore = memstore
memstore device bytes = {memory}
osd memory target = 939524096
[client.rgw]
rgw frontends = {frontends}
rgw data = {folder}/rgw
rgw thread pool size = 32
rgw gc obj min wait = 1
rgw gc processor period = 1
rgw dns name = localhost
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_certificate(folder, name="server"):
    """A self-signed certificate for localhost, which is its own authority; the paths."""
    key, certificate = os.path.join(folder, name + ".key"), os.path.join(folder, name + ".pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True)
    return key, certificate


class Gateway:
    programs = ("ceph-mon", "ceph-osd", "radosgw", "ceph", "radosgw-admin", "monmaptool")
    product, target = "Ceph", "deploy/deps test"
    access_key, secret_key = "HOLDFASTACCESS", "holdfastsecretholdfastsecret"

    def __init__(self, folder, tls=False, bucket="checkpoints", memory=4 << 30):
        self.folder, self.tls, self.bucket = os.path.abspath(folder), tls, bucket
        self.memory = memory  # that objects may take
        self.port, self.pids = free_port(), []

    @classmethod
    def missing(cls):
        """The missing packages, and how to install them; None: nothing is missing."""
        names = [name for name in cls.programs if shutil.which(name) is None]
        return f"of {cls.product} {', '.join(names)} is missing: {cls.target}" if names else None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"

    @property
    def environment(self):
        found = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key,
                 "AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1"}
        if self.tls:
            found["AWS_CA_BUNDLE"] = self.certificate
        return found

    def of_its_programs(self):
        return {**os.environ, "CEPH_CONF": self.config, "LD_PRELOAD": ""}  # which is for ours

    def run(self, *command, check=True):
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60,
                              env=self.of_its_programs())

    def until(self, what, look, seconds=30):
        end = time.monotonic() + seconds
        while not look():
            if time.monotonic() > end:
                raise RuntimeError(f"the gateway: no {what} within {seconds} s")
            time.sleep(0.05)

    def ask(self, *words):
        """The monitor, which may not answer at once on a busy machine; the same twice is fine."""
        command = ("ceph", "-c", self.config, "--connect-timeout", "5", *words)
        self.until(f"answer to {words}", lambda: self.run(*command, check=False).returncode == 0)

    def daemon(self, *command):
        """In the foreground of a separate process, which is remembered."""
        log = open(os.path.join(self.folder, "out.log"), "ab")
        process = subprocess.Popen([*command, "-f", "-c", self.config], stdout=log, stderr=log,
                                   env=self.of_its_programs())
        log.close()
        self.pids.append(process)

    def start(self):
        for name in ("mon", "osd", "rgw", "run"):
            os.makedirs(os.path.join(self.folder, name))
        self.config = os.path.join(self.folder, "ceph.conf")
        frontends = f"beast endpoint=127.0.0.1:{self.port}"
        if self.tls:
            key, self.certificate = make_certificate(self.folder)
            frontends = (f"beast ssl_endpoint=127.0.0.1:{self.port} "
                         f"ssl_certificate={self.certificate} ssl_private_key={key}")
        frontends += " tcp_nodelay=1"  # else the client's delayed ACK adds 40 ms to each answer
        fsid, mon_port, low = str(uuid.uuid4()), free_port(), free_port()
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(fsid=fsid, folder=self.folder, memory=self.memory,
                                     mon_port=mon_port, low_port=low,
                                     high_port=min(low + 40, 65535),
                                     frontends=frontends))
        monmap = os.path.join(self.folder, "monmap")
        self.run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{mon_port}]", "--fsid",
                 fsid, monmap)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "-c", self.config)
        self.daemon("ceph-mon", "-i", "a")
        osd = str(uuid.uuid4())
        self.ask("osd", "stat")  # there is a quorum
        self.ask("osd", "new", osd)
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, "-c", self.config)
        self.ask("osd", "crush", "add", "osd.0", "1.0", "host=h", "root=default")
        self.daemon("ceph-osd", "-i", "0")
        self.until("osd", lambda: "1 up" in self.run("ceph", "-c", self.config, "osd", "stat",
                                                     check=False).stdout)
        self.open()
        self.run("radosgw-admin", "-c", self.config, "user", "create", "--uid", "t",
                 "--display-name", "t", "--access-key", self.access_key, "--secret-key",
                 self.secret_key)
        self.make_bucket(self.bucket)

    def open(self):
        self.daemon("radosgw", "-n", "client.rgw")
        self.until("answer", self.answers)

    def shut(self):
        """An outage: stored objects stay, and no request is answered until open()."""
        gateway = self.pids.pop()
        gateway.kill()
        gateway.wait()

    def num_removed(self):
        """Objects that were removed or replaced, and are in the memory still."""
        return len(json.loads(self.run("radosgw-admin", "-c", self.config, "gc", "list",
                                       "--include-all").stdout))

    def answers(self):
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def curl(self, path, *options, check=True):
        """One request with curl's own signature, which is none of ours."""
        authority = ("--cacert", self.certificate) if self.tls else ()
        return self.run("curl", "-s", "-f", *authority, "--aws-sigv4", "aws:amz:us-east-1:s3",
                        "--user", f"{self.access_key}:{self.secret_key}", "-H",
                        "x-amz-content-sha256: UNSIGNED-PAYLOAD", *options,
                        f"{self.endpoint}/{path}", check=check)

    def make_bucket(self, name):
        self.until("bucket", lambda: self.curl(name, "-X", "PUT", check=False).returncode == 0)

    def stop(self):
        for process in reversed(self.pids):
            process.send_signal(signal.SIGKILL)
        for process in self.pids:
            process.wait()
        self.pids = []
        shutil.rmtree(self.folder, ignore_errors=True)


def main(tell, server=Gateway):
    """The exit status of a script whose tell(folder, gateway) returns whether all passed."""
    missing = server.missing()
    if missing:
        print(missing)
        return 77
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder, \
            server(os.path.join(folder, "server")) as gateway:
        return 0 if tell(folder, gateway) else 1
