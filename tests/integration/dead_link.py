#!/usr/bin/env python3
"""dead_link - connections that die silently: a cable is cut, a firewall drops their state.

Goal: a client notices within seconds, while a call of a minute waits, and reconnects; ckptd
notices, too, and closes the connection of a peer that has gone. Method: a trainer whose control
connection goes through a relay, which at some moment starts to drop all bytes of existing
connections, and forwards those of new ones. And a ckptd in a network namespace whose link drops
everything while a silent client is connected.
"""

import os
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402
import lib_train  # noqa: E402

lib_tap.need_programs("openssl")
import ssl  # noqa: E402

import lib_hosts  # noqa: E402
from lib_network import Network  # noqa: E402
from lib_relay import Relay  # noqa: E402
from lib_store import PATIENCE, comes  # noqa: E402
from lib_switch import Switch  # noqa: E402
from lib_tap import test  # noqa: E402

STEPS = 4
NOTICE_S = 40  # 4 s of silence and 5 s for a sign of life; of TCP 5 s and 3 tries of 5 s
ESTABLISHED = "01"
CABLE = "ckptd lets a connection go whose cable was cut"


def trainer(world):
    """Its connections die in a step of half a second or more: the next call is that of a save."""
    relay = Relay(world.address)
    world.serve()
    process = lib_train.Trainer(
        lib_train.command(world.folder, relay.address, "far", "--training.steps", STEPS,
                          "--checkpoint.interval", "1", "--checkpoint.when_busy", "wait",
                          "--canonical.micro_batches", "1000", "--checkpoint.required"),
        env={**os.environ, "HOLDFAST_TLS": world.path("anna")})
    comes(lambda: "run far, step 2" in world.log())
    relay.strand()
    begun = time.monotonic()
    said = process.communicate(timeout=3 * PATIENCE)[1]
    took = time.monotonic() - begun
    test("a trainer whose connections died without a word connects anew, and ends",
         process.returncode == 0 and took < NOTICE_S, (took, said))
    test("with every checkpoint", f"run far, step {STEPS}" in world.log(), world.log())
    relay.close()
    world.stop()


def connections(host, port):
    """Of ckptd, in its namespace."""
    with open(f"/proc/{host.keeper.pid}/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == ESTABLISHED]


class Cable:
    """A ckptd on a separate host, a silent client, and a dead link between them."""

    def __init__(self):
        lib_hosts.own_network()
        self.switch = Switch()
        self.switch.plug(2, os.getpid())
        self.host, self.world = self.switch.host(1), Network()
        port = int(self.world.address.split(":")[1])
        self.world.issue("node", "holdfast://node/n1", self.host.address)
        self.world.issue("anna", "holdfast://operator/anna")
        self.world.launch("--tls.listen", f"{self.host.address}:{port}", "--tls.directory",
                          self.world.path("node"), before=self.host.before)
        plain = socket.create_connection((self.host.address, port), PATIENCE)
        self.client = self.world.context("anna", ssl.TLSVersion.TLSv1_3).wrap_socket(
            plain, server_hostname=self.host.address)
        self.client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        self.client.recv(1)
        self.port, self.begun = port, time.monotonic()
        assert len(connections(self.host, port)) == 1
        for way in self.switch.of(1):
            way.is_cut = True

    def end(self):
        left = self.begun + NOTICE_S - time.monotonic()
        while left > 0 and connections(self.host, self.port):
            time.sleep(0.2)
            left = self.begun + NOTICE_S - time.monotonic()
        test(CABLE, not connections(self.host, self.port), connections(self.host, self.port))
        self.client.close()
        self.world.stop()
        self.world.close()
        self.host.close()
        self.switch.close()


def main():
    try:
        cable, refused = Cable(), None
    except lib_hosts.Refused as why:
        cable, refused = None, str(why)
    world = Network()
    try:
        lib_train.make_tokens(world.folder, lib_train.prose())
        world.issue("anna", "holdfast://operator/anna")
        trainer(world)
        if cable:
            cable.end()
        else:
            lib_tap.skip([CABLE], refused)
    finally:
        world.close()
    lib_tap.end()


main()
