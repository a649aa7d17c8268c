"""lib_switch - a switch in user space between network namespaces; the path between two of its ports
can act like a bad network.

    switch = Switch(seed=1)
    host = switch.host(1)                    # a namespace with 10.77.0.1, at port 1
    with bad(switch.between(1, 2), loss=0.1, late=0.2):
        ...                                  # both ways lose frames, and reorder them
    with bad(switch.of(1), is_cut=True):
        ...                                  # no frame comes from there or to there

A port is one end of a veth pair, in a namespace of the switch. The other end has the number of the
port in its hardware address, so the switch learns none. A thread reads frames from raw sockets and
forwards them: for each pair of ports and direction there is a Way. Its decisions follow from the
seed, in the order of its frames. A frame of TCP has up to 64 KiB: the kernel splits it at its
destination (PACKET_VNET_HDR), so a lost frame is up to 45 packets.
"""

import contextlib
import ctypes
import heapq
import itertools
import os
import random
import select
import socket
import threading
import time

from lib_hosts import CLONE_NEWNET, Namespace, Refused, run

ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR = 3, 263, 15
PACKET_OUTGOING, SO_RCVBUFFORCE = 4, 33
HEADER_BYTES, ADDRESS_BYTES = 10, 6  # of PACKET_VNET_HDR, before the hardware addresses
FRAME_BYTES_MAX, QUEUE_BYTES = 70000, 16 << 20
AT_ONCE = 64  # frames of one port, before those that are due
LATE_S = 0.01  # how long a frame is delayed so that later ones overtake it
EVERYBODY = 0xff


class Way:
    """From one port to another. loss, late: shares of the frames; delay_s: the longest."""

    def __init__(self, chance, delay_s):
        self.chance, self.delay_s = chance, delay_s
        self.loss = self.late = self.last_due = 0.0
        self.is_cut = False
        self.newest = self.frames = self.bytes = self.lost = self.overtaken = 0

    def due(self, now):
        """When a frame that arrives now is forwarded; None: it is lost."""
        loss, late, delay = (self.chance.random() for _ in range(3))
        self.frames += 1
        if self.is_cut or loss < self.loss:
            self.lost += 1
            return None
        self.last_due = max(self.last_due, now + delay * self.delay_s)
        return self.last_due + (LATE_S if late < self.late else 0)

    def count(self, number, size):
        """The frame of that number, which grows, was forwarded."""
        self.overtaken += number < self.newest
        self.newest = max(self.newest, number)
        self.bytes += size


class Host(Namespace):
    def __init__(self, number):
        super().__init__()
        self.number, self.address = number, address(number)


class Switch:
    def __init__(self, seed=0, delay_s=0.0):
        self.seed, self.delay_s = seed, delay_s
        self.namespace, self.is_closed = Namespace(), False
        self.ports, self.ways = {}, {}
        self.waiting, self.numbers = [], itertools.count(1)
        self.thread = threading.Thread(target=self.pass_on, daemon=True)
        self.thread.start()

    def host(self, number):
        host = Host(number)
        self.plug(number, host.keeper.pid, host.before)
        return host

    def plug(self, number, pid, before=(), device="eth0"):
        """Gives the namespace of that process a device at port `number`, with address(number);
        before: the command that runs a program there."""
        port = f"p{number}"
        run("ip", "link", "add", port, "netns", self.namespace.keeper.pid, "type", "veth",
            "peer", "name", device, "address", f"02:00:00:00:00:{number:02x}", "netns", pid)
        run(*self.namespace.before, "ip", "link", "set", port, "addrgenmode", "none", "up")
        run(*before, "ip", "addr", "add", address(number) + "/24", "dev", device)
        run(*before, "ip", "link", "set", device, "addrgenmode", "none", "up")
        for other in self.ports:
            for pair in (number, other), (other, number):
                chance = random.Random(f"{self.seed} {pair}")
                self.ways[pair] = Way(chance, self.delay_s)
        self.ports = {**self.ports, number: self.listen(port)}

    def listen(self, device):
        """A socket with all frames that arrive at the device, in the switch's namespace."""
        system = ctypes.CDLL(None, use_errno=True)
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/proc/{self.namespace.keeper.pid}/ns/net", os.O_RDONLY)
        try:
            if system.setns(there, CLONE_NEWNET) != 0:
                raise Refused("a network namespace cannot be entered here")
            one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, QUEUE_BYTES)
            one.bind((device, 0))
            one.setblocking(False)
            return one
        except OSError as error:
            raise Refused(f"a raw socket is not permitted here: {error}") from error
        finally:
            system.setns(here, CLONE_NEWNET)
            os.close(here)
            os.close(there)

    def between(self, a, b):
        """Both ways, that from `a` first."""
        return [self.ways[a, b], self.ways[b, a]]

    def of(self, number):
        return [way for pair, way in self.ways.items() if number in pair]

    def bytes(self):
        return sum(way.bytes for way in self.ways.values())

    def pass_on(self):
        while not self.is_closed:
            left = self.waiting[0][0] - time.monotonic() if self.waiting else 0.1
            numbers = {one: number for number, one in self.ports.items()}
            for one in select.select(list(numbers), [], [], max(0, min(left, 0.1)))[0]:
                self.take(numbers[one], one)
            self.give()

    def take(self, number, one):
        with contextlib.suppress(OSError):  # no frame is left, or the namespace has gone
            for _ in range(AT_ONCE):
                frame, source = one.recvfrom(FRAME_BYTES_MAX)
                if source[2] != PACKET_OUTGOING:
                    self.enter(number, frame)

    def enter(self, number, frame):
        to = frame[HEADER_BYTES + ADDRESS_BYTES - 1]
        for other in self.ports if to == EVERYBODY else (to,):
            way = self.ways.get((number, other))
            due = way and way.due(time.monotonic())
            if due is not None:
                heapq.heappush(self.waiting, (due, next(self.numbers), other, way, frame))

    def give(self):
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, number, port, way, frame = heapq.heappop(self.waiting)
            way.count(number, len(frame))
            with contextlib.suppress(OSError):
                self.ports[port].send(frame)

    def close(self):
        self.is_closed = True
        self.thread.join()
        for one in self.ports.values():
            one.close()
        self.namespace.close()


def address(number):
    return f"10.77.0.{number}"


@contextlib.contextmanager
def bad(ways, **fields):
    """The ways have these values; afterwards those of a good network again."""
    for way in ways:
        for name, value in fields.items():
            setattr(way, name, value)
    yield
    for way in ways:
        way.loss, way.late, way.is_cut = 0.0, 0.0, False
