#!/usr/bin/env python3
"""network - the clients that ckptd admits over TCP, and their permitted calls.

Goal: only a certificate of the authority, in force, not revoked, that names one identity, is
admitted. Each role may make its calls and no other, a role that names a run only those of that run.
The client trusts only the host that it asked for. ckptd rereads the files while it serves. Silent
connections of strangers block no operator. The bulk plane serves a checkpoint's files only to a
client with a ticket and the identity that it was issued to. Method: a real ckptd on loopback,
certificates by deploy/certificates, ckpt-cli and Python's grpcio as clients. Every call is made
with every identity, and the answer compared with a separate table.
"""

import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402

lib_tap.need("grpc")
lib_tap.need_programs("openssl")
import grpc  # noqa: E402
from lib_network import (HELLO, REQUEST, Network, answer_of, fetch_from, free_port, say_hello,
                         ticket_from)  # noqa: E402
from lib_store import PATIENCE, comes  # noqa: E402
from lib_tap import test  # noqa: E402

LOOK = {"Hello"}
SEE = {"List", "Show", "History", "WaitSave"}
OF_ALL = {"Status", "Rescan"}  # name no run
SAVE = {"OpenAttempt", "Describe", "Stop", "AskSave"}
SESSION_SAVE = {"BeginSave", "AbortSave", "Attend"}  # name a session, here one that is not there
OPERATE = {"Release", "Adopt", "Gc", "Scrub", "KeepVerified", "Remove", "Undelete",
           "Reload", "ForceAttempt"}
LOAD = {"OpenLoad", "OpenBulk"}
SESSION_LOAD = {"LoadShard", "ReleaseShard", "CloseLoad"}
FILES = {"Peer"}  # for the store; here a list of all of it: afar.py has the other operations
PEER = {"Join", "BeginPart", "ReportPart"}  # between nodes
MAY_SAVE, MAY_LOAD = SAVE | SESSION_SAVE, LOAD | SESSION_LOAD
CALLS = LOOK | SEE | OF_ALL | MAY_LOAD | FILES | MAY_SAVE | PEER | OPERATE | {"Prune", "Pin"}
MAY = {
    "holdfast://operator/anna": CALLS - PEER,
    "holdfast://node/n2": LOOK | SEE | OF_ALL | MAY_LOAD | FILES | PEER,
    "holdfast://reader": LOOK | SEE | OF_ALL | MAY_LOAD | FILES,
    "holdfast://reader/a": LOOK | SEE | MAY_LOAD,
    "holdfast://reader/b": LOOK | SESSION_LOAD,  # every call names the run a
    "holdfast://pruner": LOOK | SEE | OF_ALL | {"Prune", "Pin"},
    "holdfast://trainer/a": LOOK | SEE | MAY_LOAD | MAY_SAVE | {"Pin"},
    "holdfast://trainer/b": LOOK | SESSION_LOAD | SESSION_SAVE,
}
# The run a, in the field that each request has for it; the others have none.
RUN = {**dict.fromkeys(("OpenAttempt", "Describe", "WaitSave", "List", "Show", "Prune", "Pin",
                        "Release", "History", "Remove", "Undelete", "ForceAttempt", "Stop",
                        "AskSave", "KeepVerified"),
                       b"\x0a\x01a"),
       "OpenLoad": b"\x12\x01a", "OpenBulk": b"\x12\x01a", "Scrub": b"\x12\x01a",
       **dict.fromkeys(("Join", "BeginPart", "ReportPart"), b"\x0a\x01a"),
       "Adopt": b"\x1a\x01a", "Peer": b"\x08\x09"}  # of Peer: list the store
SILENT = 200  # connections that say nothing


def allowed(world, channel):
    """The calls that are not refused for lack of a right."""
    good = set()
    for name in sorted(CALLS):
        call = channel.unary_unary(f"/holdfast.v1.Checkpoint/{name}")
        try:
            call(RUN.get(name, b""), timeout=PATIENCE)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.PERMISSION_DENIED:
                continue
            assert error.code() != grpc.StatusCode.UNAVAILABLE, (name, error, world.log())
        good.add(name)
    return good


def roles(world):
    for uri, may in MAY.items():
        name = world.issue(uri.replace("/", "-").replace(":", ""), uri)
        with world.channel(name) as channel:
            got = allowed(world, channel)
        test(f"{uri} may make its calls and no other", got == may,
             f"too many {got - may}, too few {may - got}")
    test("what was refused is in the log, with who asked and why",
         "Gc refused to holdfast://reader/a" in world.log(), world.log())


def requested(world, name, uri, says=None):
    """As an authority of one's own answers a request; `says`: with another identity."""
    out, authority = world.path(name), world.path("authority")
    world.certificates("request", out, uri)
    change_text(os.path.join(out, "extensions.cnf"), uri, says or uri)
    subprocess.run(["openssl", "x509", "-req", "-in", os.path.join(out, "request.pem"), "-CA",
                    os.path.join(authority, "authority.pem"), "-CAkey",
                    os.path.join(authority, "authority.key"), "-CAcreateserial", "-days", "1",
                    "-extfile", os.path.join(out, "extensions.cnf"), "-out",
                    os.path.join(out, "certificate.pem")],
                   check=True, capture_output=True)
    shutil.copy(os.path.join(authority, "authority.pem"), out)


def change_text(path, old, new):
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace(old, new))


def identities(world):
    world.issue("anna", "holdfast://operator/anna")
    test("an operator with a certificate lists", world.ask("anna", "list")[0] == 0)
    test("no certificate is refused", not world.comes_in(None))
    test("TLS 1.2 is refused", not world.comes_in("anna", ssl.TLSVersion.TLSv1_2))
    test("TLS 1.3 with a certificate is not", world.comes_in("anna"))
    other = world.path("other-authority")
    world.certificates("authority", other)
    world.issue("stranger", "holdfast://operator/anna", authority=other)
    world.issue("late", "holdfast://operator/anna", STARTDATE="20200101000000Z",
                ENDDATE="20200201000000Z")
    requested(world, "king", "holdfast://operator/anna", "holdfast://king/anna")
    requested(world, "bare", "holdfast://trainer/a", "holdfast://trainer")
    for uri in ("holdfast://king/anna", "holdfast://trainer", "operator/anna"):
        code, said = world.try_certificates("issue", world.authority, world.path("none"), uri)
        test(f"certificates makes none for {uri}", code == 78 and "not a valid identity" in said and
             not os.path.exists(world.path("none")), said)
    for name, what, why, said in (
            ("stranger", "another authority's", "unable to get local issuer certificate",
             "is not believed"),
            ("late", "an expired", "certificate has expired", "has ended"),
            ("king", "an unknown role's", "names 0 identities", "hung up on the certificate"),
            ("bare", "a trainer's of no run", "names 0 identities", "hung up on the certificate")):
        test(f"{what} certificate is refused, and the log says why",
             comes(lambda: not world.comes_in(name) and why in world.log()), world.log())
        code, heard = world.ask(name, "list", "--json")
        test("and so does the client, in one object", code == 69 and
             said in json.loads(heard)["message"], heard)
    requested(world, "berta", "holdfast://operator/berta")
    test("a certificate that an authority of one's own made of a request comes in",
         world.ask("berta", "list")[0] == 0, world.log())
    code, said = world.ask("anna", "list", address="localhost:" + world.address.split(":")[1])
    test("the client refuses a server whose certificate names another host", code != 0 and
         "not believed" in said and "mismatch" in said, said)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        code, said = world.ask("anna", "list", "--json",
                               address=f"127.0.0.1:{unused.getsockname()[1]}")
    test("where nobody listens a client says so, with --json in one object", code == 69 and
         "Connection refused" in json.loads(said)["message"], said)
    code, said = world.ask("nowhere", "list")
    test("a client without files names the one that is missing", code == 66 and
         "authority.pem" in said, said)


def fetch(world, name, ticket, part, count, source=""):
    with world.bulk_socket(name, source=source) as stream:
        return fetch_from(stream, ticket, part, count)


def ticket_for(world, name, run, step):
    with world.channel(name) as channel:
        return ticket_from(channel, run, step)


def put(world, name, ticket):
    with world.bulk_socket(name) as stream:
        say_hello(stream, ticket)
        stream.sendall(struct.pack(REQUEST, b"BLK1", 2, 0, 0, 0, 1, 1, 0, 0, 0, 0) + b"x")
        return answer_of(stream)


def turned_away(world, name, protocol="holdfast-bulk/1"):
    try:
        with world.bulk_socket(name, protocol) as stream:
            stream.sendall(struct.pack(HELLO, b"BLK1", 0, bytes(16)))
            return stream.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def bulk(world):
    world.save([3])
    shard = next(os.path.join(folder, file) for folder, _, files in os.walk(world.store)
                 for file in sorted(files) if file.endswith(".safetensors"))
    with open(shard, "rb") as file:
        data = file.read(1 << 20)
    world.issue("peer", "holdfast://node/n3")
    ticket = ticket_for(world, "peer", world.run, 3)
    got = fetch(world, "peer", ticket, 0, len(data))
    test("a node with a ticket gets a stored shard", got == (0, data), got[1][:200])
    error, text = fetch(world, "peer", ticket, 2**32 - 1, 100)
    test("and the manifest", error == 0 and text[:1] == b"{", text[:100])
    test("it is told that there is no such part", fetch(world, "peer", ticket, 99, 1)[0] == -2)
    test("it may not write", put(world, "peer", ticket)[0] == -11)
    test("nobody else comes in with it", fetch(world, "anna", ticket, 0, 1)[0] == -11)
    test("nor does it without one", fetch(world, "peer", bytes(16), 0, 1)[0] == -11)
    test("who has no certificate is turned away", turned_away(world, None))
    test("another authority's, too", turned_away(world, "stranger"))
    test("and who speaks something else", turned_away(world, "peer", "h2"))
    with world.bulk_socket("peer") as stream:
        say_hello(stream, ticket)
        stream.sendall(b"x" * 64)
        test("what is no request ends the connection", stream.recv(1) == b"")


def bulk_reload(world):
    """After the revocation of `gone`."""
    test("the bulk plane reads the list of the revoked, too",
         comes(lambda: turned_away(world, "gone")) and
         fetch(world, "peer", ticket_for(world, "peer", world.run, 3), 0, 1)[0] == 0, world.log())


def readable_key(world):
    os.chmod(world.path("node", "key.pem"), 0o644)
    world.spawn("--tls.listen", world.address, "--tls.directory", world.path("node"))
    code = world.process.wait(PATIENCE)
    test("a key that others can read ends the start with 78", code == 78, code)
    test("and with the reason", "can be read by others" in world.log(), world.log())
    os.chmod(world.path("node", "key.pem"), 0o600)


def reload(world):
    world.issue("gone", "holdfast://reader")
    with world.channel("gone") as channel:
        listing = channel.unary_unary("/holdfast.v1.Checkpoint/List")
        listing(b"", timeout=PATIENCE)
        world.certificates("revoke", world.authority, world.path("gone"))
        shutil.copy(os.path.join(world.authority, "revoked.pem"), world.path("node"))

        def refused():
            try:
                listing(b"", timeout=PATIENCE)
            except grpc.RpcError as error:
                return error.code() == grpc.StatusCode.UNAVAILABLE
            return False
        test("a certificate that is revoked is out without a restart, open connections too",
             comes(refused), world.log())
    bulk_reload(world)
    test("the others come in as before", world.ask("anna", "list")[0] == 0, world.log())
    with open(world.path("node", "revoked.pem"), "w") as file:
        file.write("no list")
    test("a list that cannot be used is told", comes(lambda: "cannot be used" in world.log()))
    test("and the one before holds", world.ask("anna", "list")[0] == 0 and
         not world.comes_in("gone"), world.log())


def ending(world):
    """In the certificate of ckptd itself."""
    os.unlink(world.path("node", "revoked.pem"))

    def told(days, words):
        end = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + days * 86400))
        world.issue("node", "holdfast://node/n1", "127.0.0.1", STARTDATE="20200101000000Z",
                    ENDDATE=end)
        return comes(lambda: words in world.cli("status", *world.where)[1])
    status = world.status()
    test("a certificate that is good for long is no alarm, and its time is a number",
         not status["alarms"] and status["tls"]["certificate_seconds_left"] > 30 * 86400, status)
    test("one that ends within two weeks is", told(3, "ends in 3.0 days"), world.log())
    test("and one that has ended", told(-1, "has expired"), world.log())
    world.stop()
    code, out, _ = world.check("--tls.listen", world.address, "--tls.directory", world.path("node"))
    test("--check tells of it before a start", code == 78 and "has expired" in out, out)


def another_role(world):
    world.issue("other", "holdfast://reader", "127.0.0.1")
    for check in ([], ["--check"]):
        code, *said = world.refused(*check, "--store", world.store + "2", "--tls.listen",
                                    f"127.0.0.1:{free_port()}", "--tls.directory",
                                    world.path("other"))
        test(f"ckptd {''.join(check)} refuses a certificate of another role, and names both",
             code == 78 and "holdfast://reader" in "".join(said) and
             "holdfast://node/NAME" in "".join(said), said)


def silent_crowd(address, sources):
    host, port = address.split(":")
    return [socket.create_connection((host, int(port)), PATIENCE, (sources[i % len(sources)], 0))
            for i in range(SILENT)]


def bulk_crowd(world):
    """The same on the bulk plane, from the client's own address: one with a budget of its own, as
    the tests before have spent much of the other's."""
    source = "127.0.0.77"
    silent = silent_crowd(world.bulk, [source])
    ticket = ticket_for(world, "peer", world.run, 3)

    def fetched():
        try:
            return fetch(world, "peer", ticket, 0, 100, source)[0]
        except OSError as error:
            return error
    got = [fetched() for _ in range(10)]
    test("a silent crowd keeps nobody out of the bulk plane", got == [0] * 10, (got, world.log()))
    for connection in silent:
        connection.close()


def crowd(world):
    """Connections that say nothing: of the address that clients have, and of many others."""
    for what, sources in (("of the client's own address", ["127.0.0.1"]),
                          ("of many addresses", [f"127.0.0.{i}" for i in range(2, 40)])):
        silent = silent_crowd(world.address, sources)
        asked = [world.ask("anna", "list")[0] for _ in range(10)]
        test(f"a silent crowd {what} keeps no client out", asked == [0] * 10, (asked, world.log()))
        test(f"nor anybody of this node: {what}", world.cli("list", *world.where)[0] == 0)
        for connection in silent:
            connection.close()


def main():
    world = Network()
    try:
        readable_key(world)
        another_role(world)
        world.serve()
        identities(world)
        roles(world)
        bulk(world)
        reload(world)
        crowd(world)
        bulk_crowd(world)
        ending(world)
    finally:
        world.close()
    lib_tap.end()


main()
