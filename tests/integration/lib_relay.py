"""lib_relay - a relay between a client and a server over TCP that acts like a bad network.

    relay = Relay("127.0.0.1:7070", seed=1, delay_s=0.002, resets=0.001)
    relay.address                  # the client's end
    relay.hold("out")              # no byte from the client arrives any more; "back": to it
    relay.go_on()                  # the held bytes arrive, late
    relay.strand()                 # existing connections die silently

TCP loses no bytes: lost packets arrive late (delay_s, hold), or the connection ends (resets,
every). All decisions follow from the seed, in the order of connections.
"""

import random
import socket
import struct
import threading
import time

CHUNK = 65536


class Relay:
    """Forwards bytes to `to`; with `every`, cuts each connection after so many bytes, `times` in
    all."""

    def __init__(self, to, host="127.0.0.1", seed=0, delay_s=0.0, resets=0.0, port=0):
        self.to, self.delay_s, self.resets = to, delay_s, resets
        self.every, self.times, self.cuts = None, 0, 0
        self.passed = 0  # bytes, both ways
        self.kept = 0  # bytes that came to a way that is held
        self.room = None  # so many bytes pass back, then that way is held
        self.held, self.is_closed, self.age = set(), False, 0
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self.listener = socket.create_server((host, port))
        self.address = f"{host}:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def hold(self, *ways):
        self.held |= set(ways or ("out", "back"))

    def go_on(self):
        self.held = set()

    def strand(self):
        self.age += 1

    def close(self):
        self.is_closed = True
        self.go_on()
        self.listener.shutdown(socket.SHUT_RDWR)  # accept() ends, so the port is free
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                with self.lock:
                    chances = [random.Random(self.chance.random()) for _ in range(2)]
                threading.Thread(target=self.connect, args=(client, chances), daemon=True).start()
            except OSError:
                return

    def connect(self, client, chances):
        """A held direction delays new connections, too."""
        self.wait("out")
        try:
            host, port = self.to.split(":")
            server = socket.create_connection((host, int(port)), 10)
            server.settimeout(None)
        except OSError:
            client.close()
            return
        for way, a, b, chance in (("out", client, server, chances[0]),
                                  ("back", server, client, chances[1])):
            threading.Thread(target=self.move, args=(way, a, b, chance), daemon=True).start()

    def take(self, way, count):
        if self.room is not None and way == "back":
            self.room -= count
            if self.room <= 0:
                self.room = None
                self.hold("back")

    def wait(self, way):
        while way in self.held and not self.is_closed:
            time.sleep(0.01)

    def move(self, way, a, b, chance):
        left, age = self.every, self.age
        try:
            while data := a.recv(CHUNK):
                self.kept += len(data) if way in self.held else 0
                self.take(way, len(data))
                self.wait(way)
                if age != self.age:
                    continue
                if self.delay_s:
                    time.sleep(chance.random() * self.delay_s)
                if self.resets and chance.random() < self.resets:
                    self.cuts += 1
                    for end in (a, b):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                if left is not None and self.times > 0 and (left := left - len(data)) <= 0:
                    self.times -= 1
                    self.cuts += 1
                    b.sendall(data[:len(data) // 2])
                    break
                b.sendall(data)
                self.passed += len(data)
        except OSError:
            pass
        for end in (a, b) if age == self.age else ():
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
