"""lib_network - a ckptd that is reached over TCP, with an authority and certificates of its own,
for the scripts that come to it from "another machine"."""

import os
import socket
import ssl
import subprocess
import time

from lib_store import CLI, PATIENCE, World

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Network(World):
    def __init__(self):
        super().__init__()
        self.authority = os.path.join(self.folder, "authority")
        self.certificates("authority", self.authority)
        self.issue("node", "holdfast://node/n1", "127.0.0.1")
        self.address = f"127.0.0.1:{free_port()}"
        self.bulk = f"127.0.0.1:{free_port()}"

    def certificates(self, *words, **environment):
        done = subprocess.run([os.path.join(ROOT, "deploy/certificates"), *words], text=True,
                              capture_output=True, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr

    def path(self, name, file=""):
        return os.path.join(self.folder, name, file)

    def issue(self, name, uri, *hosts, authority=None, **environment):
        self.certificates("issue", authority or self.authority, self.path(name), uri, *hosts,
                          **environment)
        return name

    def serve(self, *words):
        self.start("--tls.listen", self.address, "--tls.bulk", self.bulk, "--tls.directory",
                   self.path("node"), *words)

    def ask(self, name, *words, address=None):
        done = subprocess.run([CLI, *words, "--server", address or self.address], text=True,
                              capture_output=True, timeout=PATIENCE,
                              env={**os.environ, "HOLDFAST_TLS": self.path(name)})
        return done.returncode, done.stdout + done.stderr

    def channel(self, name, address=None):
        import grpc
        def read(file):
            with open(self.path(name, file), "rb") as pem:
                return pem.read()
        return grpc.secure_channel(address or self.address, grpc.ssl_channel_credentials(
            read("authority.pem"), read("key.pem"), read("certificate.pem")))

    def bulk_socket(self, name, protocol="holdfast-bulk/1"):
        context = self.context(name, ssl.TLSVersion.TLSv1_3)
        context.set_alpn_protocols([protocol])
        host, port = self.bulk.split(":")
        return context.wrap_socket(socket.create_connection((host, int(port)), PATIENCE),
                                   server_hostname=host)

    def context(self, name, version):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.path("node", "authority.pem"))
        if name:
            context.load_cert_chain(self.path(name, "certificate.pem"), self.path(name, "key.pem"))
        context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        return context

    def comes_in(self, name, version=ssl.TLSVersion.TLSv1_3):
        """Does the server keep the connection? With TLS 1.3 it refuses behind the handshake."""
        host, port = self.address.split(":")
        try:
            with socket.create_connection((host, int(port)), PATIENCE) as plain:
                with self.context(name, version).wrap_socket(plain, server_hostname=host) as tls:
                    tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                    return tls.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False


def soon(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
