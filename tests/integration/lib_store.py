"""lib_store - a ckptd on a private store, for the scripts that test operations on checkpoints.

World starts and stops a real ckptd, makes checkpoints through libckpt (`saver save`), and
asks ckpt-cli, through the server or on the directory. write_llama() makes models to import,
change() and sealed() damage; Clock moves the wall clock.
"""

import contextlib
import ctypes
import hashlib
import json
import logging
import math
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import lib_program
from lib_program import BUILD, is_sanitized

CLI = os.path.join(BUILD, "ckpt-cli")
SAVER = os.path.join(BUILD, "tests/saver")
YEAR = 365 * 86400
PATIENCE = 60  # seconds, of anything that should take a fraction of one


@contextlib.contextmanager
def logged():
    """The log messages of the Python package meanwhile, from any thread; they go nowhere else."""
    said, logger = [], logging.getLogger("holdfast")
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    was, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = was


def take_libckpt():
    """Later imports use the built libckpt. A sanitizer's runtime in it must be loaded first: the
    script starts again with it preloaded. Leaks, of which Python has its own, are not reported."""
    library = os.environ["HOLDFAST_LIBCKPT"] = os.path.join(BUILD, "libckpt.so.1")
    if not is_sanitized("libckpt.so.1") or "libasan" in os.environ.get("LD_PRELOAD", ""):
        return
    needed = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    runtime = re.search(r"=> (\S*libasan\S*)", needed)
    if not runtime:
        print("a library with this sanitizer cannot be loaded into Python")
        sys.exit(77)
    os.environ.update(LD_PRELOAD=runtime[1],
                      ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
    os.execv(sys.executable, [sys.executable, *sys.argv])


def comes(is_so, seconds=PATIENCE, pause=0.02):
    """Waits until it is true; otherwise returns the last value."""
    until = time.monotonic() + seconds
    while not (found := is_so()) and time.monotonic() < until:
        time.sleep(pause)
    return found


def comes_to(look, value):
    return comes(lambda: look() == value)


def wait_until(is_so, what, pause=0.02):
    """what: the reason printed when the wait fails; or a function that returns it."""
    assert comes(is_so, pause=pause), what() if callable(what) else what


class ClockOf:
    """The clock of the programs that get its environment: build/shims/clock.so, which maps the
    file. So the file is never cut short."""

    def __init__(self, path, *preloads):
        self.path = path
        self.set(0)
        shims = (os.path.join(BUILD, "shims", name) for name in ("clock.so", *preloads))
        self.environment = {"LD_PRELOAD": " ".join(shims), "CLOCK_FILE": path}

    def set(self, years, seconds=0):
        with open(self.path, "wb" if not os.path.exists(self.path) else "r+b") as file:
            file.write(struct.pack("q", years * YEAR + seconds))


class Clock(ClockOf):
    """Of every program that is started from now on."""

    def __init__(self, folder):
        super().__init__(os.path.join(folder, "clock"))
        os.environ.update(self.environment)


def llama_shapes(dim, kv_dim, hidden, vocab):
    """The tensors of a Llama of one layer, as Hugging Face names them."""
    rows = {"self_attn.q_proj": (dim, dim), "self_attn.k_proj": (kv_dim, dim),
            "self_attn.v_proj": (kv_dim, dim), "self_attn.o_proj": (dim, dim),
            "mlp.gate_proj": (hidden, dim), "mlp.up_proj": (hidden, dim),
            "mlp.down_proj": (dim, hidden), "input_layernorm": (dim,),
            "post_attention_layernorm": (dim,)}
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in rows.items()}
    return {**shapes, "model.embed_tokens.weight": (vocab, dim), "model.norm.weight": (dim,),
            "lm_head.weight": (vocab, dim)}


def write_safetensors(path, tensors, padding=0):
    """{name: (dtype, shape, bytes, first bytes)}; the rest is a hole. Returns the number of
    bytes."""
    at, header = 0, {}
    for name, (dtype, shape, size, _) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode() + b" " * padding
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, (*_, data) in tensors.items():
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(data)
        file.truncate(8 + len(text) + at)
    return at


def write_llama(folder, dim, hidden, vocab, data_of):
    """Such a model, as Hugging Face has it; the data of a tensor of n bytes begins with data_of(n).
    The bytes of all tensors."""
    tensors = {}
    for name, shape in llama_shapes(dim, dim // 2, hidden, vocab).items():
        size = 4 * math.prod(shape)
        tensors[name] = "F32", shape, size, data_of(size)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model_type": "llama", "hidden_size": dim, "num_attention_heads": dim // 128,
                   "num_key_value_heads": dim // 256, "intermediate_size": hidden,
                   "vocab_size": vocab, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
                   "rope_theta": 500000.0}, file)
    return write_safetensors(os.path.join(folder, "model.safetensors"), tensors)


def change(path, offset, new=None):
    """Another byte, or this one."""
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(new if new is not None else bytes([old[0] ^ 0x10]))


def hashed_at(text, key):
    """Sets the value of the last member of that name to the XXH3-64 of everything before it."""
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.argtypes, xxh3.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint64
    at = text.rindex(key) + len(key)
    return text[:at] + b"%016x" % xxh3(bytes(text[:at]), at) + text[at + 16:]


def sealed(text):
    """A manifest that was changed, with the right checksums again."""
    if b'"summary_hash":"' in text:
        text = hashed_at(text, b'"summary_hash":"')
    text = text[:text.rindex(b'"sha256"')]
    return text + b'"sha256":"%s"}\n' % hashlib.sha256(text).hexdigest().encode()


def at_step(text, step):
    """The manifest of a checkpoint as one of that step would have it, a step of more digits."""
    longer = re.sub(rb'"step":\d+', b'"step":%d' % step, text, count=1)
    filling = b" " * (len(longer) - len(text)) + b"\n"  # the summary keeps its length
    return sealed(longer.replace(filling, b"\n", 1))


def copy_without_data(shard, to, step):
    """The shard's file as one of that step has it, but its data and its table are a hole. The
    hashes of its header before and now, as the manifest has them."""
    key, member = b'"header_hash":"', rb'"header_hash":"[0-9a-f]{16}"'
    with open(shard, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0] + 8
        file.seek(0)
        before = file.read(size)
    header = re.sub(rb'"step":"\d+"', b'"step":"%d"' % step, before.rstrip(b" "), count=1)
    header = hashed_at(header, key)
    with open(to, "wb") as file:
        file.write(header.ljust(size))
        file.truncate(os.path.getsize(shard))
    return [re.findall(member, text)[-1] for text in (before, header)]


def mark(folder):
    """A writer into such a directory of a step leaves it there until the manifest is durable."""
    run = os.path.basename(os.path.dirname(folder))
    step, attempt = os.path.basename(folder)[5:].split("-a")
    with open(os.path.join(folder, "unfinished"), "w") as file:
        file.write('{"format":"holdfast-unfinished","version":1,"run":"%s","step":%d,"attempt":%d,'
                   '"nonce":"%032x","boot_id":"%016x"}\n' % (run, int(step), int(attempt), 0, 1))


def uncommit(folder):
    """A crash's remains of a save: its shards and its mark."""
    os.remove(os.path.join(folder, "manifest.json"))
    mark(folder)


def make_tier(folder, far):
    """The directory `far` becomes a far tier, as an operator makes it."""
    subprocess.run([os.path.join(BUILD, "ckptd"), "--store", os.path.join(folder, "store"),
                    "--tier.store", "dir:" + far, "--make_store"], check=True, capture_output=True)


class World:
    def __init__(self, store=None):
        self.folder = tempfile.mkdtemp(prefix="st-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.server = f"unix:{self.folder}/s"
        self.where = ("--server", self.server)
        self.store = store or os.path.join(self.folder, "store")
        self.ckptd = os.path.join(BUILD, "ckptd")
        self.process = self.readiness = None
        self.run = None

    def program(self):
        """Stores that inject faults are opened by the ckptd of the tests alone."""
        is_faulty = self.store.startswith("fault:")
        return os.path.join(BUILD, "tests", "ckptd") if is_faulty else self.ckptd

    def spawn(self, *options, before=(), **popen):
        """A ckptd that scrubs only when told to; `before`: a command that gives it other limits."""
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [*before, self.program(), "--listen", self.server, "--store", self.store,
                 "--memory.pool_bytes", "64MiB", "--memory.segment_bytes", "1MiB",
                 "--scrub.start_ms", "86400000", *options],
                stderr=log, **popen)

    def refused(self, *options, before=()):
        """Of a ckptd that ends at once: its exit code, its output, and its log."""
        done = subprocess.run([*before, self.ckptd, "--listen", self.server + "2", "--store",
                               self.store, "--memory.pool_bytes", "64MiB",
                               "--memory.segment_bytes", "1MiB", *options],
                              capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def check(self, *options, before=()):
        return self.refused("--check", "--listen", self.server, *options, before=before)

    def listen_for_readiness(self, environ):
        """The environment of a ckptd that says here when it answers calls (sd_notify(3))."""
        path = os.path.join(self.folder, "ready")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if self.readiness:
            self.readiness.close()
        self.readiness = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.readiness.bind(path)
        os.chmod(path, 0o777)  # ckptd may run as another user
        return {**environ, "NOTIFY_SOCKET": path}

    def launch(self, *options, before=(), env=None, **popen):
        """One that answers."""
        self.spawn(*options, before=before, env=self.listen_for_readiness(env or os.environ),
                   **popen)
        deadline = time.monotonic() + PATIENCE
        while not select.select([self.readiness], [], [], 0.1)[0]:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()

    start = launch

    def log(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as log:
            return log.read()

    def end(self):
        """Its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def stop(self):
        code = self.end()
        assert code == 0, (code, self.log())

    def copy_store(self, to):
        """While ckptd serves it: files without their final name may disappear meanwhile."""
        shutil.copytree(self.store, to, symlinks=True,
                        ignore=shutil.ignore_patterns(".holdfast.tmp.*"))

    def try_save(self, step, ranks=2, seed=1):
        """True when it was committed; and the output."""
        done = lib_program.run(SAVER, "save", self.server, ranks, seed, step, timeout=PATIENCE)
        return done.returncode == 0, done.stderr

    def save_one(self, step, **how):
        good, said = self.try_save(step, **how)
        assert good, said

    def save(self, steps):
        for step in steps:
            self.save_one(step)
        self.run = self.run or self.listed()[0]["run"]

    def cli(self, *arguments):
        done = lib_program.run(CLI, *arguments, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def status(self):
        code, out, err = self.cli("status", "--json", *self.where)
        assert code in (0, 1), err
        return json.loads(out)

    def listed(self, *where):
        code, out, err = self.cli("list", "--json", *(where or ("--store", self.store)))
        assert code in (0, 1), err
        return json.loads(out)

    def steps(self):
        return sorted(entry["step"] for entry in self.listed())

    def verify_one(self, entry):
        name = f"{entry['run']}@{entry['step']}-a{entry['attempt']}"
        code, out, err = self.cli("verify", "--store", self.store, name)
        return code, f"{name}: exit {code}: {out}{err}"

    def all_verify(self):
        """The listed checkpoints that do not verify."""
        bad = []
        for entry in self.listed():
            code, said = self.verify_one(entry)
            if code != 0:
                bad.append(said)
        return bad

    def tombstones(self):
        folder = os.path.join(self.store, self.run, "tombstones")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return [name for name in names if name.startswith("step-")]

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.readiness:
            self.readiness.close()
        shutil.rmtree(self.folder)
