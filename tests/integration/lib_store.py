"""lib_store - a ckptd on a store of its own, for the scripts that test what happens to checkpoints.

World starts and stops a real ckptd, makes checkpoints through libckpt (`clients_ckpt save`), and
asks ckpt-cli, through the server or on the directory. llama_shapes() is for models to import.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
CLI = os.path.join(BUILD, "ckpt-cli")
SAVER = os.path.join(BUILD, "tests/clients_ckpt")


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


PATIENCE = 60  # seconds, of anything that should take a fraction of one


class World:
    def __init__(self, store=None):
        self.folder = tempfile.mkdtemp(prefix="pr-")
        self.server = f"unix:{self.folder}/s"
        self.where = ("--server", self.server)
        self.store = store or os.path.join(self.folder, "store")
        self.ckptd = os.path.join(BUILD, "ckptd")
        self.process = None
        self.run = None

    def launch(self, *options, before=(), **popen):
        """A ckptd that answers; `before`: a command that gives it other limits."""
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [*before, self.ckptd, "--listen", self.server, "--store", self.store,
                 "--memory.pool_bytes", "64MiB", "--memory.segment_bytes", "1MiB", *options],
                stderr=log, **popen)
        deadline = time.monotonic() + PATIENCE
        while self.cli("health", *self.where)[0] != 0:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def start(self, *options, before=()):
        """One that may also remove."""
        self.launch("--limits.lease_ms", "1000", *options, before=before)
        time.sleep(1.05)  # for so long nothing is removed: readers of a ckptd before

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

    def try_save(self, step):
        """Was it committed? And what was said."""
        done = subprocess.run([SAVER, "save", self.server, "2", "1", str(step)], timeout=PATIENCE,
                              capture_output=True, text=True)
        return done.returncode == 0, done.stderr

    def save(self, steps):
        for step in steps:
            good, said = self.try_save(step)
            assert good, said
        self.run = self.run or self.listed()[0]["run"]

    def cli(self, *arguments):
        done = subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True,
                              timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def listed(self, *where):
        code, out, err = self.cli("list", "--json", *(where or ("--store", self.store)))
        assert code == 0, err
        return json.loads(out)

    def steps(self):
        return sorted(entry["step"] for entry in self.listed())

    def all_verify(self):
        """What does not, among those listed."""
        bad = []
        for entry in self.listed():
            name = f"{entry['run']}@{entry['step']}-a{entry['attempt']}"
            code, out, err = self.cli("verify", "--store", self.store, name)
            if code != 0:
                bad.append(name + ": " + out + err)
        return bad

    def tombstones(self):
        folder = os.path.join(self.store, self.run, "tombstones")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return [name for name in names if name.startswith("step-")]

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder)
