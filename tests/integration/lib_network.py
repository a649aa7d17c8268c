"""lib_network - a ckptd that is reached over TCP, with a test authority and certificates, for the
scripts that connect from "another machine"."""

import os
import socket
import ssl
import struct
import subprocess

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
        code, said = self.try_certificates(*words, **environment)
        assert code == 0, said

    def try_certificates(self, *words, **environment):
        done = subprocess.run([os.path.join(ROOT, "deploy/certificates"), *words], text=True,
                              capture_output=True, env={**os.environ, **environment})
        return done.returncode, done.stderr

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
        return tls_channel(self.path(name), address or self.address)

    def bulk_socket(self, name, protocol="holdfast-bulk/1", source=""):
        return bulk_socket(self.context(name, ssl.TLSVersion.TLSv1_3), self.bulk, protocol, source)

    def context(self, name, version):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.path("node", "authority.pem"))
        if name:
            context.load_cert_chain(self.path(name, "certificate.pem"), self.path(name, "key.pem"))
        context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        return context

    def comes_in(self, name, version=ssl.TLSVersion.TLSv1_3):
        """True when the server keeps the connection. With TLS 1.3 it refuses after the
        handshake."""
        host, port = self.address.split(":")
        try:
            with socket.create_connection((host, int(port)), PATIENCE) as plain:
                with self.context(name, version).wrap_socket(plain, server_hostname=host) as tls:
                    tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                    return tls.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False


def tls_channel(folder, address):
    """To a server, with the certificate there."""
    import grpc
    def read(file):
        with open(os.path.join(folder, file), "rb") as pem:
            return pem.read()
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(
        read("authority.pem"), read("key.pem"), read("certificate.pem")))


def bulk_socket(context, address, protocol="holdfast-bulk/1", source=""):
    context.set_alpn_protocols([protocol])
    host, port = address.split(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), PATIENCE, (source, 0)),
                               server_hostname=host)


def take(stream, count):
    data = b""
    while len(data) < count:
        data += stream.recv(count - len(data)) or (_ for _ in ()).throw(ConnectionError("over"))
    return data


HELLO, REQUEST, ANSWER = "<4sI16s", "<4sIIIQQQQIIQ", "<4siQQQQQIIQ"  # proto/bulk/wire.h


def answer_of(stream):
    """The error, and the bytes after it."""
    _, error, _, count, *_ = struct.unpack(ANSWER, take(stream, struct.calcsize(ANSWER)))
    return error, take(stream, count)


def say_hello(stream, ticket):
    stream.sendall(struct.pack(HELLO, b"BLK1", 0, ticket))
    return answer_of(stream)


def fetch_from(stream, ticket, part, count):
    """So much of the beginning of a part, or why not."""
    said = say_hello(stream, ticket)
    if said[0] != 0:
        return said
    stream.sendall(struct.pack(REQUEST, b"BLK1", 1, part, 0, 0, count, 0, 0, 0, 0, 0))
    return answer_of(stream)


def ticket_from(channel, run, step):
    request = b"\x12" + bytes([len(run)]) + run.encode() + b"\x18" + bytes([step])
    reply = channel.unary_unary("/holdfast.v1.Checkpoint/OpenBulk")(request, timeout=PATIENCE)
    assert reply[:2] == b"\x0a\x10", reply  # field 1, 16 bytes
    return reply[2:18]
