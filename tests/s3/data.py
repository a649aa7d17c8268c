#!/usr/bin/env python3
"""data - a run reads its tokens and its text from a bucket.

Goal: a run on s3://BUCKET/PATH has bitwise the losses of the same run on the same files, be it a
tokens file, a folder of text or a mixture of both. A host fetches each byte once, whatever the
number of ranks and starts; a killed fetch resumes. An object that changed under its name is refused
at a resume, and while it is fetched. A missing, forbidden, misnamed or too large object gives one
line. Method: losses from Ceph's RADOS gateway (lib_rgw.py); the strict server of the tests counts,
is slow, and changes objects (lib_server.py).
"""

import glob
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))
sys.dont_write_bytecode = True

import lib_rgw  # noqa: E402
import lib_tap  # noqa: E402
import lib_train  # noqa: E402
from lib_drive import environment  # noqa: E402
from lib_server import Object, Server  # noqa: E402
from lib_store import World, wait_until  # noqa: E402

MIB = 1 << 20
SYNC = 16 * MIB  # of trainer/corpus/bucket.c
LARGE = 40 * MIB + 12345


class Large(bytes):
    """An object that no disk has room for."""

    def __len__(self):
        return 1 << 60


class Bed:
    def __init__(self, folder, gateway):
        self.folder, self.gateway, self.server = folder, gateway, Server()
        self.world = World()
        self.world.launch()
        text = lib_train.prose()
        lib_train.make_tokens(folder, text)
        for name, part in ("texts/a.txt", text[:15000]), ("texts/b/c.md", text[-9000:]):
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            with open(self.path(name), "wb") as file:
                file.write(part)
        for name in "tokens", "texts/a.txt", "texts/b/c.md":
            gateway.curl(f"checkpoints/data/{name}", "-T", self.path(name))
            self.put(f"data/{name}", self.read(name))
        for name in "data/texts/_SUCCESS", "data/texts/a b.png", "data/another name.txt":
            self.put(name, b"no part of the data, and not fetched")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def tokenize(self, out, name):
        subprocess.run([os.path.join(lib_train.BUILD, "tokenizer"), "tokens", "--tokenizer",
                        self.path("tok"), "--out", self.path(out), self.path(name)], check=True,
                       capture_output=True, timeout=60)

    def put(self, key, data, tag=None):
        self.server.objects[key] = Object(data, tag or f"{hash(data):x}", {}, time.time())

    def spawn(self, run, *options, settings=None, cache="cache"):
        return subprocess.Popen(
            lib_train.command(self.folder, self.world.server, run, "--training.steps", "4",
                              "--comm.ranks", "2", "--metrics.loss_file",
                              self.path(run + ".loss"), *options),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment(settings or self.server.environment,
                            {"XDG_CACHE_HOME": self.path(cache), "HOLDFAST_S3_RETRY_S": "5"}))

    def train(self, run, *options, want=0, **how):
        process = self.spawn(run, *options, **how)
        said = process.communicate(timeout=100)[0]
        assert process.returncode == want, (run, process.returncode, said)
        return said

    def close(self):
        self.server.close()
        self.world.close()


def losses_are_those_of_the_same_files(bed):
    tok = "--model.hf_assets_path", bed.path("tok")
    for run, name in ("file", "tokens"), ("folder", "texts"), ("mixture", None):
        def data(where):
            return (("--training.dataset_path", f"{where}/{name}") if name else
                    ("--training.dataset_path", "", "--training.mixture",
                     f"{where}/tokens:0.75,{where}/texts:0.25"))
        bed.train(run, *tok, *data(bed.folder))
        for settings, cache in (bed.gateway.environment, "gateway"), (None, "cache"):
            far = f"{run}-{cache}"
            said = bed.train(far, *tok, *data("s3://checkpoints/data"), settings=settings,
                             cache=cache)
            if run == "folder" and settings is None:
                assert "of text files: 2 (_SUCCESS, a b.png)" in said or \
                    "of text files: 2 (a b.png, _SUCCESS)" in said, said
            assert bed.read(far + ".loss") == bed.read(run + ".loss"), far
    read = {key: bytes for key, bytes in bed.server.read.items() if bytes}
    assert read == {f"data/{name}": len(bed.read(name))
                    for name in ("tokens", "texts/a.txt", "texts/b/c.md")}, read


def a_killed_fetch_goes_on(bed):
    data, key = os.urandom(LARGE), "data/large"
    bed.put(key, data)
    bed.server.delay_s, bed.server.is_delayed = 0.3, lambda request: "Range" in request.headers

    def there():
        names = glob.glob(bed.path("cache/holdfast/s3/*.part/large.fetching"))
        return os.path.getsize(names[0]) if names else 0
    for what, more_than, code in (signal.SIGTERM, 0, 75), (signal.SIGKILL, SYNC, -signal.SIGKILL):
        process = bed.spawn("large", "--training.dataset_path", "s3://checkpoints/" + key)
        wait_until(lambda: there() > more_than or process.poll() is not None, "the fetch")
        process.send_signal(what)
        said = process.communicate()[0]
        assert process.returncode == code and more_than < there() < LARGE, (there(), said)
    begins = (there() - 1) // SYNC * SYNC
    bed.server.delay_s = 0
    bed.server.settle()
    bed.server.read.clear()
    said = bed.train("large", "--training.dataset_path", "s3://checkpoints/" + key, want=78)
    assert bed.server.read[key] == LARGE - begins, (bed.server.read, begins)
    (whole,) = glob.glob(bed.path("cache/holdfast/s3/*/large"))
    with open(whole, "rb") as file:
        assert file.read() == data
    assert not glob.glob(bed.path("cache/holdfast/s3/*.*"))


def data_that_changed_under_their_name_are_refused_at_a_resume(bed):
    options = "--training.dataset_path", "s3://checkpoints/data/tokens"
    bed.train("changed", *options, "--training.steps", "2", "--lr_scheduler.total_steps", "4")
    bed.tokenize("other", "texts/b/c.md")
    bed.put("data/tokens", bed.read("other"))
    said = bed.train("changed", *options, want=78)
    assert "s3://checkpoints/data/tokens has other tokens than when the run was saved" in said, said
    bed.put("data/tokens", bed.read("tokens"))
    bed.train("changed", *options)


def data_that_change_while_they_are_fetched_are_not_kept(bed):
    server, get = bed.server, bed.server.get

    def change(request):
        answer = get(request)
        if "Range" in request.headers:
            bed.put("data/moving", bed.read("tokens"), tag=str(time.time()))
        return answer
    bed.put("data/moving", bed.read("tokens"))
    server.get = change
    try:
        said = bed.train("moving", "--training.dataset_path", "s3://checkpoints/data/moving",
                         "--comm.ranks", "1", want=75)
    finally:
        server.get = get
    assert "s3://checkpoints/data/moving changed while it was fetched" in said, said
    assert not glob.glob(bed.path("cache/holdfast/s3/*.part"))
    bed.train("moving", "--training.dataset_path", "s3://checkpoints/data/moving")


def what_cannot_be_fetched_is_said(bed):
    bed.put("huge/tokens", Large(b"x"))
    bed.put("names/a b.txt", b"x")
    bed.put("empty/picture.png", b"x")
    wrong = dict(bed.server.environment, AWS_SECRET_ACCESS_KEY="another")
    for path, code, words, settings in [
            ("data/none", 78, "there is neither an object s3://checkpoints/data/none nor", None),
            ("data/tokens", 78, "403", wrong),
            ("names", 78, 'the bucket has "a b.txt"', None),
            ("empty", 78, "no object below s3://checkpoints/empty has the name of a text", None),
            ("huge/tokens", 75, "1099511627776.0 MiB are to be fetched, and", None)]:
        said = bed.train("bad", "--training.dataset_path", "s3://checkpoints/" + path, want=code,
                         settings=settings)
        assert words in said, (words, said)


TESTS = [
    losses_are_those_of_the_same_files,
    a_killed_fetch_goes_on,
    data_that_changed_under_their_name_are_refused_at_a_resume,
    data_that_change_while_they_are_fetched_are_not_kept,
    what_cannot_be_fetched_is_said,
]


def tell(folder, gateway):
    bed = Bed(folder, gateway)
    try:
        return lib_tap.run(TESTS, bed)
    finally:
        bed.close()


if __name__ == "__main__":
    sys.exit(lib_rgw.main(tell))
