#!/usr/bin/env python3
"""models - a model is exported straight into a bucket and imported from one, with a real S3 server.

Goal: `export --output s3://...` leaves, object by object, the bytes of a local export, and nothing
on this machine's disk. A folder is a model only when all of it is there; objects sent before a kill
are not sent again. Memory does not grow with the model's size. `import s3://...` makes the same
checkpoint as an import of the folder, also straight into a bucket. Method: Ceph's RADOS gateway
(lib_rgw.py), whose objects curl fetches with its own signature. The strict server of the tests
(lib_server.py) counts the bytes of a second try.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import lib_rgw  # noqa: E402
import lib_server  # noqa: E402
import lib_tap  # noqa: E402
from lib_drive import environment  # noqa: E402
from lib_store import CLI, is_sanitized, wait_until, write_llama  # noqa: E402

MIB = 1 << 20
PART = 5 * MIB  # the least that the gateway takes
DIM, HIDDEN, VOCAB = 768, 4096, 15001  # 130 MiB, and no multiple of 4096 bytes
SETTINGS = {"HOLDFAST_S3_PART_BYTES": str(PART), "HOLDFAST_S3_CONNECTIONS": "4"}
MEMORY_MAX = {"import": 100 * MIB, "export": 270 * MIB}
# In a separate process, which is small: ours would count.
MEASURE = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""


class Bed:
    def __init__(self, folder, gateway):
        self.folder, self.gateway = folder, gateway
        self.model, self.store = self.path("model"), self.path("store")
        os.mkdir(self.model)
        noise = os.urandom(MIB)  # each MiB is another one, so that no two parts are alike

        def data_of(size):
            return b"".join(hashlib.sha256(bytes([n % 256, size % 251])).digest() +
                            noise[:4] * ((min(MIB, size - n * MIB) - 32) // 4)
                            for n in range((size + MIB - 1) // MIB))[:size]
        self.bytes = write_llama(self.model, DIM, HIDDEN, VOCAB, data_of)
        self.cli("import", self.model, "--run", "m", "--store", self.store, "--shards", "3")
        self.local = self.path("local")
        self.cli("export", "m", "--store", self.store, "--format", "hf", "--shard-size", "40MiB",
                 "--output", self.local)

    def path(self, name):
        return os.path.join(self.folder, name)

    def spawn(self, *arguments, server=None, **more):
        return subprocess.Popen(
            [CLI, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment((server or self.gateway).environment, SETTINGS, more))

    def cli(self, *arguments, want=0, server=None, **more):
        process = self.spawn(*arguments, server=server, **more)
        out, err = process.communicate(timeout=300)
        assert process.returncode == want, (arguments, process.returncode, out, err)
        return out if want == 0 else out + err

    def export(self, where, *options, **more):
        return self.cli("export", "m", "--store", self.store, "--format", "hf", "--shard-size",
                        "40MiB", "--output", where, *options, **more)

    def curl(self, path):
        """An object, or with a query a list."""
        return subprocess.run(
            ["curl", "-s", "-S", "-f", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
             f"{self.gateway.access_key}:{self.gateway.secret_key}", "-H",
             "x-amz-content-sha256: UNSIGNED-PAYLOAD",
             f"{self.gateway.endpoint}/checkpoints{path}"],
            check=True, capture_output=True, timeout=120).stdout

    def names(self, prefix):
        quoted = urllib.parse.quote(prefix + "/", safe="")
        root = ElementTree.fromstring(self.curl(f"?list-type=2&prefix={quoted}"))
        return sorted(key.text[len(prefix) + 1:] for key in root.iter() if key.tag.endswith("Key"))

    def is_uploading(self, prefix):
        """Are there tensors of which not all parts have come? (Not the probe of a new prefix.)"""
        quoted = urllib.parse.quote(prefix + "/", safe="")
        root = ElementTree.fromstring(self.curl(f"?prefix={quoted}&uploads="))
        return any(key.tag.endswith("Key") and key.text.endswith(".safetensors")
                   for key in root.iter())

    def holds_the_local_export(self, prefix):
        assert self.names(prefix) == sorted(os.listdir(self.local)), self.names(prefix)
        for name in os.listdir(self.local):
            with open(os.path.join(self.local, name), "rb") as file:
                assert self.curl(f"/{prefix}/{name}") == file.read(), name


def a_folder_in_a_bucket_is_byte_for_byte_the_local_one(bed):
    before = sorted(os.listdir(bed.folder))
    said = json.loads(bed.export("s3://checkpoints/hf/one", "--json"))
    assert said["durability"] == "bucket" and said["output"] == "s3://checkpoints/hf/one", said
    assert said["files"] == len([n for n in os.listdir(bed.local) if n.endswith(".safetensors")])
    assert sorted(os.listdir(bed.folder)) == before
    bed.holds_the_local_export("hf/one")
    assert "exists already" in bed.export("s3://checkpoints/hf/one", want=74)
    bed.export("s3://checkpoints/hf/one", "--force")
    bed.holds_the_local_export("hf/one")


def one_file_is_one_object_and_another_is_replaced_only_when_told(bed):
    local = bed.path("one.safetensors")
    arguments = ("export", "m", "--store", bed.store, "--output")
    bed.cli(*arguments, local)
    bed.cli(*arguments, "s3://checkpoints/one.safetensors")
    with open(local, "rb") as file:
        want = file.read()
    assert len(want) % 4096 != 0, "an odd size is what is to be shown"
    assert bed.curl("/one.safetensors") == want
    bf16 = ("s3://checkpoints/one.safetensors", "--dtype", "bf16")
    assert "exists already" in bed.cli(*arguments, *bf16, want=74)
    assert bed.curl("/one.safetensors") == want
    bed.cli(*arguments, *bf16, "--force")
    assert len(bed.curl("/one.safetensors")) < len(want) * 0.6


def a_folder_that_holds_something_else_is_refused(bed):
    bed.cli("export", "m", "--store", bed.store, "--output", "s3://checkpoints/mixed/other.txt")
    assert "it holds other.txt" in bed.export("s3://checkpoints/mixed", want=74)
    assert bed.names("mixed") == ["other.txt"]
    bed.cli("cp", "--store", bed.store, "m", "s3://checkpoints/copies:m")
    found = [name for name in bed.names("copies") if name.endswith("/manifest.json")]
    where = "s3://checkpoints/copies/" + os.path.dirname(found[0])
    assert "lies in a checkpoint" in bed.export(where, want=74)


def sent_to(server):
    """Bytes of tensors that it has."""
    there = [(upload.key, part) for upload in list(server.uploads.values())
             for part in list(upload.parts.values())]
    there += list(server.objects.items())
    return sum(len(one.data) for key, one in there if key.endswith(".safetensors"))


def killed(bed, where, server=None):
    """An export that was killed when it had sent a third, or, to the gateway, had begun to."""
    process = bed.spawn("export", "m", "--store", bed.store, "--format", "hf", "--shard-size",
                        "40MiB", "--output", where, server=server, HOLDFAST_S3_RATE="24MiB")
    folder = where.removeprefix("s3://checkpoints/")

    def is_on_its_way():
        return sent_to(server) >= bed.bytes // 3 if server else bed.is_uploading(folder)
    wait_until(lambda: is_on_its_way() or process.poll() is not None, "a third of it")
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if server:
        server.settle()


def what_a_kill_leaves_is_no_model_and_the_same_command_ends_it(bed):
    killed(bed, "s3://checkpoints/hf/cut")
    assert "config.json" not in bed.names("hf/cut")
    assert "the folder has no config.json" in bed.cli(
        "import", "s3://checkpoints/hf/cut", "--run", "x", "--store", bed.path("x"), want=66)
    bed.export("s3://checkpoints/hf/cut")
    bed.holds_the_local_export("hf/cut")


def parts_and_objects_that_are_there_are_not_sent_again(bed):
    server = lib_server.Server()
    try:
        killed(bed, "s3://checkpoints/cut", server=server)
        sent = sent_to(server)
        assert sent < bed.bytes, sent
        server.log.clear()
        bed.export("s3://checkpoints/cut", server=server)
        again = sum(size for method, _, size in server.log if method == "PUT")
        print(f"# of {bed.bytes >> 20} MiB {sent >> 20} were there, {again >> 20} sent again")
        assert again < bed.bytes - sent + MIB, (again, sent)
        for name in os.listdir(bed.local):
            with open(os.path.join(bed.local, name), "rb") as file:
                assert server.objects[f"cut/{name}"].data == file.read(), name
        assert not server.uploads
        del server.objects["cut/config.json"]
        other = server.objects["cut/model-00002-of-00004.safetensors"]
        at = other.data.index(b"nonce") + 10
        other.data = other.data[:at] + bytes([other.data[at] ^ 1]) + other.data[at + 1:]
        assert "another model-00002-of-00004" in bed.export("s3://checkpoints/cut", server=server,
                                                            want=74), "of another checkpoint"
    finally:
        server.close()


def a_copy_sends_each_byte_once_and_reads_each_once(bed):
    server = lib_server.Server()

    def shards(method, prefix):
        return [size for what, path, size in server.log
                if what == method and f"/{prefix}/" in path and "shard-" in path]
    try:
        bed.cli("cp", "--store", bed.store, "m", "s3://checkpoints/one:m", server=server)
        there = {key: one.data for key, one in server.objects.items() if "shard-" in key}
        size = sum(map(len, there.values()))
        assert bed.bytes < size == sum(shards("PUT", "one")), (size, server.log)
        assert not shards("GET", "one"), "what was sent is not read back"
        server.log.clear()
        bed.cli("cp", "--store", "s3://checkpoints/one", "m", "s3://checkpoints/two:m",
                server=server)
        assert sum(shards("PUT", "two")) == size and not shards("GET", "two"), server.log
        most = size // MIB + 4 * len(there)  # of each its header, its table and the ends of blocks
        assert len(shards("GET", "one")) <= most, (len(shards("GET", "one")), most)
        for key, data in there.items():
            assert server.objects["two" + key.removeprefix("one")].data == data, key
    finally:
        server.close()


def an_import_from_a_bucket_is_the_import_of_the_folder(bed):
    for store in (bed.path("back"), "s3://checkpoints/back"):
        said = json.loads(bed.cli("import", "s3://checkpoints/hf/one", "--run", "m", "--store",
                                  store, "--shards", "2", "--json"))
        assert said["shards"] == 2, said
        again = bed.path("again")
        bed.cli("export", "m", "--store", store, "--format", "hf", "--shard-size", "40MiB",
                "--output", again)
        for name in os.listdir(bed.local):
            with open(os.path.join(bed.local, name), "rb") as one, \
                    open(os.path.join(again, name), "rb") as two:
                want, got = one.read(), two.read()
                if name.endswith(".safetensors"):
                    want, got = weights(want), weights(got)
                assert got == want, (store, name)
        subprocess.run(["rm", "-r", again], check=True)


def weights(data):
    """Without the header, which names the checkpoint."""
    return data[8 + int.from_bytes(data[:8], "little"):]


def memory_does_not_follow_the_models_size(bed):
    if is_sanitized("ckpt-cli"):
        raise lib_tap.Skip("a sanitizer keeps freed memory")
    model, store, where = bed.path("large"), bed.path("large.store"), "s3://checkpoints/hf/large"
    os.mkdir(model)
    size = write_llama(model, DIM, HIDDEN, 4 * VOCAB, lambda size: b"")
    bed.cli("import", model, "--run", "m", "--store", store, "--shards", "3")
    for command in (("export", "m", "--store", store, "--format", "hf", "--output", where),
                    ("import", where, "--run", "m", "--store", bed.path("peak"))):
        said = subprocess.run(
            [sys.executable, "-c", MEASURE, CLI, *command], check=True, text=True,
            stdout=subprocess.PIPE, env=environment(bed.gateway.environment, SETTINGS)).stdout
        peak = int(said.split()[-1]) << 10
        print(f"# {command[0]}: {peak >> 20} MiB at most, the model {size >> 20}")
        assert peak < MEMORY_MAX[command[0]] < size, peak


TESTS = [
    a_folder_in_a_bucket_is_byte_for_byte_the_local_one,
    one_file_is_one_object_and_another_is_replaced_only_when_told,
    a_folder_that_holds_something_else_is_refused,
    what_a_kill_leaves_is_no_model_and_the_same_command_ends_it,
    parts_and_objects_that_are_there_are_not_sent_again,
    a_copy_sends_each_byte_once_and_reads_each_once,
    an_import_from_a_bucket_is_the_import_of_the_folder,
    memory_does_not_follow_the_models_size,
]


def tell(folder, gateway):
    return lib_tap.run(TESTS, Bed(folder, gateway))


if __name__ == "__main__":
    sys.exit(lib_rgw.main(tell))
