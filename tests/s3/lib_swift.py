"""lib_swift.py - OpenStack Swift with its s3api, a real S3 server that honours conditions which
Ceph's gateway does not, and the other way round; from the distribution: as plain processes in a
folder.

    with Swift(folder) as swift:
        swift.environment                 # AWS_* for a program of ours

Method: one account, one container, one object server on one directory, a proxy, a memcached; rings
of one device, built at the same time. No process forks. All processes are ended by process id.
"""
import getpass
import os
import subprocess

import lib_rgw

KINDS = ("account", "container", "object")
COMMON = """[DEFAULT]
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
"""
STORE = COMMON + """[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
PROXY = COMMON + """[pipeline:main]
pipeline = catch_errors gatekeeper cache listing_formats s3api tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{cache}
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_holdfast_tester = {secret} .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""


class Swift(lib_rgw.Gateway):
    programs = ("swift-proxy-server", "swift-account-server", "swift-container-server",
                "swift-object-server", "swift-ring-builder", "memcached")
    product, target = "Swift", "deploy/deps check"
    access_key = "holdfast:tester"

    def daemon(self, *command):
        log = open(os.path.join(self.folder, "out.log"), "ab")
        self.pids.append(subprocess.Popen(command, stdout=log, stderr=log))
        log.close()

    def write(self, name, text, **values):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.format(folder=self.folder, user=getpass.getuser(),
                                   secret=self.secret_key, **values))
        return path

    def build_ring(self, kind, port):
        """A process that does it."""
        path = os.path.join(self.folder, kind + ".builder")
        steps = (f"swift-ring-builder {path} create 4 1 0 && "
                 f"swift-ring-builder {path} add --region 1 --zone 1 --ip 127.0.0.1 --port {port} "
                 f"--device d1 --weight 1 && swift-ring-builder {path} rebalance")
        return subprocess.Popen(["sh", "-c", steps], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def start(self):
        os.makedirs(os.path.join(self.folder, "devices", "d1"))
        self.write("swift.conf", "[swift-hash]\nswift_hash_path_suffix = holdfast\n")
        ports = {kind: lib_rgw.free_port() for kind in KINDS}
        rings = [self.build_ring(kind, ports[kind]) for kind in KINDS]
        if any(ring.wait(120) not in (0, 1) for ring in rings):  # 1: with a warning
            raise RuntimeError("swift: no ring could be built")
        for kind in KINDS:
            conf = self.write(kind + ".conf", STORE, kind=kind, port=ports[kind])
            self.daemon(f"swift-{kind}-server", conf)
        cache = lib_rgw.free_port()
        self.daemon("memcached", "-l", "127.0.0.1", "-p", str(cache), "-u", getpass.getuser())
        self.daemon("swift-proxy-server", self.write("proxy.conf", PROXY, port=self.port,
                                                     cache=cache))
        self.until("answer", self.answers, 120)
        self.make_bucket(self.bucket)

    def make_bucket(self, name):
        """By Swift's own interface: curl takes the colon in the access key for its end."""
        base = f"http://127.0.0.1:{self.port}"
        said = self.curl("-i", "-H", f"X-Storage-User: {self.access_key}", "-H",
                         f"X-Storage-Pass: {self.secret_key}", base + "/auth/v1.0")
        told = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
        token, where = told["X-Auth-Token"], told["X-Storage-Url"]
        self.until("bucket", lambda: " 201 " in self.curl(
            "-i", "-X", "PUT", "-H", f"X-Auth-Token: {token}", f"{where}/{name}"))

    @staticmethod
    def curl(*arguments):
        return subprocess.run(["curl", "-s", *arguments], capture_output=True, text=True,
                              timeout=60).stdout
