#!/usr/bin/env python3
"""reflection - a stock gRPC client, with no .proto file of ours, explores ckptd and calls it.

Goal: what the server says of itself is enough to use it; everything it describes can be asked for
by name; streams are bounded, and end with the server instead of holding it up.
Method: a real ckptd with the checkpoints of ckpt_example in it; Python's grpcio and its stock
reflection client fetch the descriptors, from which message classes are made at run time.
"""

import os
import queue
import shutil
import signal
import subprocess
import tempfile
import time

import lib_tap

lib_tap.need("grpc", "grpc_reflection", "google.protobuf")
import grpc  # noqa: E402
from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: E402
from google.protobuf.descriptor_pool import DescriptorPool  # noqa: E402
from google.protobuf.message_factory import GetMessageClass  # noqa: E402
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # noqa: E402
    ProtoReflectionDescriptorDatabase,
)
from grpc_reflection.v1alpha.reflection_pb2 import (  # noqa: E402
    ServerReflectionRequest,
    ServerReflectionResponse,
)

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
STREAMS_MAX = 16  # as in proto/rpc.c
CALL_SECONDS = 20
GRACE_SECONDS = 1  # as in ckptd/server.c
PROTOCOL = 2  # as in proto/rpc.h
ATTEMPTS = 5
VERSIONS = ("v1", "v1alpha")  # the same bytes under two names
SERVICES = [
    "holdfast.v1.Checkpoint",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
]
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Bed:
    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="rf-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.server = f"unix:{self.root}/s"
        self.log = open(os.path.join(self.root, "log"), "ab+")
        command = [os.path.join(BUILD, "ckptd"), "--listen", self.server, "--store"]
        command += [os.path.join(self.root, "store"), "--memory.pool_bytes", "64MiB"]
        command += ["--memory.segment_bytes", "4MiB"]
        self.ckptd = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.channel = grpc.insecure_channel(self.server)
        grpc.channel_ready_future(self.channel).result(CALL_SECONDS)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = DescriptorPool(self.database)

    def end(self):
        self.channel.close()
        if self.ckptd.poll() is None:
            self.ckptd.send_signal(signal.SIGTERM)
        status = self.ckptd.wait(60)
        self.log.seek(0)
        text = self.log.read().decode()
        self.log.close()
        shutil.rmtree(self.root)
        return status, text

    def call(self, service, method, /, **fields):
        """Calls a method whose types are known from the server alone."""
        described = self.pool.FindServiceByName(service).FindMethodByName(method)
        request = GetMessageClass(described.input_type)(**fields)
        unary = self.channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )
        return unary(request, timeout=CALL_SECONDS)


class Stream:
    """A reflection stream that stays open until it is told otherwise."""

    def __init__(self, bed, version="v1", serializer=ServerReflectionRequest.SerializeToString):
        self.requests = queue.Queue()
        method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        self.answers = bed.channel.stream_stream(
            method,
            request_serializer=serializer,
            response_deserializer=ServerReflectionResponse.FromString,
        )(iter(self.requests.get, None), timeout=CALL_SECONDS)

    def send(self, **fields):
        self.requests.put(ServerReflectionRequest(**fields))

    def ask(self, **fields):
        self.send(**fields)
        return next(self.answers)

    def half_close(self):
        self.requests.put(None)


def status_of(function):
    """The gRPC status that `function` fails with."""
    try:
        result = function()
    except grpc.RpcError as error:
        return error.code()
    raise AssertionError(f"no error, but {result}")


def names_of_message(message):
    yield message.full_name
    for part in list(message.fields) + list(message.oneofs):
        yield part.full_name
    for enum in message.enum_types:
        yield from names_of_enum(enum, message.full_name)
    for nested in message.nested_types:
        yield from names_of_message(nested)


def names_of_enum(enum, scope):
    yield enum.full_name
    for value in enum.values:
        yield f"{scope}.{value.name}"


def names_of_file(file):
    for message in file.message_types_by_name.values():
        yield from names_of_message(message)
    for enum in file.enum_types_by_name.values():
        yield from names_of_enum(enum, file.package)
    for service in file.services_by_name.values():
        yield service.full_name
        for method in service.methods:
            yield f"{service.full_name}.{method.name}"


@test
def the_services_are_listed(bed):
    assert sorted(bed.database.get_services()) == sorted(SERVICES)


@test
def hello_is_called_with_types_that_came_from_the_server(bed):
    reply = bed.call("holdfast.v1.Checkpoint", "Hello", protocol=PROTOCOL)
    assert reply.protocol == PROTOCOL and reply.boot_id != 0 and reply.version != ""
    assert reply.arena_socket == f"{bed.root}/s.arena", reply


@test
def list_names_the_checkpoints_of_the_example(bed):
    program = [os.path.join(BUILD, "ckpt_example"), bed.server]
    subprocess.run(program, check=True, timeout=60, stdout=subprocess.DEVNULL)
    listed = bed.call("holdfast.v1.Checkpoint", "List").checkpoints
    assert 3 in [one.step for one in listed], listed
    assert all(one.world_size == 2 and one.attempt == 1 for one in listed), listed


@test
def health_is_described_and_says_serving(bed):
    for service in ("", "holdfast.v1.Checkpoint"):
        reply = bed.call("grpc.health.v1.Health", "Check", service=service)
        values = reply.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number
        assert values[reply.status].name == "SERVING"
    status = status_of(lambda: bed.call("grpc.health.v1.Health", "Check", service="no.such"))
    assert status == grpc.StatusCode.NOT_FOUND, status


@test
def every_method_that_is_described_is_known_and_no_other(bed):
    for service in SERVICES[:2]:
        for method in bed.pool.FindServiceByName(service).methods:
            try:
                bed.call(service, method.name)
            except grpc.RpcError as error:  # an empty request is wrong for most of them
                assert error.code() != grpc.StatusCode.UNIMPLEMENTED, method.name
    for method in ("/holdfast.v1.Checkpoint/NoSuch", "/no.such.Service/Hello"):
        status = status_of(lambda: bed.channel.unary_unary(method)(b"", timeout=CALL_SECONDS))
        assert status == grpc.StatusCode.UNIMPLEMENTED, (method, status)


@test
def every_name_of_every_file_is_found_by_itself(bed):
    stream = Stream(bed)
    count = 0
    for service in SERVICES:
        file = bed.pool.FindFileContainingSymbol(service)
        for name in names_of_file(file):
            answer = stream.ask(file_containing_symbol=name)
            (packed,) = answer.file_descriptor_response.file_descriptor_proto
            assert FileDescriptorProto.FromString(packed).name == file.name, name
            answer = stream.ask(file_containing_symbol=name + "x")
            assert answer.error_response.error_code == 5, name
            count += 1
    stream.half_close()
    assert list(stream.answers) == [] and count > 100, count


@test
def requests_of_a_stream_are_answered_in_order_in_both_versions(bed):
    for version in VERSIONS:
        stream = Stream(bed, version)
        for number in range(200):
            if number % 2:
                stream.send(host=str(number), file_by_filename="proto/ckpt.proto")
            else:
                stream.send(host=str(number), all_extension_numbers_of_type="x")
        stream.half_close()
        answers = list(stream.answers)
        assert [answer.valid_host for answer in answers] == [str(n) for n in range(200)]
        for number, answer in enumerate(answers):
            assert answer.original_request.host == str(number)
            assert answer.HasField(
                "file_descriptor_response" if number % 2 else "error_response"
            ), answer
        assert stream.answers.code() == grpc.StatusCode.OK


@test
def an_unreadable_request_ends_its_stream_and_no_other(bed):
    other, broken = Stream(bed), Stream(bed, serializer=lambda message: b"\xff\xff")
    status = status_of(lambda: broken.ask(list_services=""))
    assert status == grpc.StatusCode.INVALID_ARGUMENT, status
    assert len(other.ask(list_services="").list_services_response.service) == len(SERVICES)
    other.half_close()
    assert list(other.answers) == []


@test
def one_stream_too_many_is_refused_and_calls_go_on(bed):
    streams = [Stream(bed) for _ in range(STREAMS_MAX)]
    for stream in streams:
        stream.ask(list_services="")
    status = status_of(lambda: Stream(bed).ask(list_services=""))
    assert status == grpc.StatusCode.RESOURCE_EXHAUSTED, status
    assert bed.call("holdfast.v1.Checkpoint", "Hello", protocol=PROTOCOL).protocol == PROTOCOL
    for number, stream in enumerate(streams):  # half of them leave without a word
        stream.answers.cancel() if number % 2 else stream.half_close()
    deadline = time.monotonic() + CALL_SECONDS
    while True:  # the server may hear of it a little later
        try:
            Stream(bed).ask(list_services="")
            return
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            assert time.monotonic() < deadline, "the streams were not given back"


@test
def open_streams_end_with_the_server_and_do_not_hold_it_up(unused):
    """A server that waited for them would take all of its grace, every time. On a busy machine one
    that does not may also be slow, but not always."""
    seconds = []
    while len(seconds) < ATTEMPTS and min(seconds, default=GRACE_SECONDS) >= GRACE_SECONDS:
        bed = Bed()
        try:
            idle, busy = Stream(bed), Stream(bed)
            idle.ask(list_services="")
            for _ in range(2000):  # nobody reads the answers
                busy.send(file_by_filename="proto/ckpt.proto")
            next(busy.answers)
            start = time.monotonic()
            bed.ckptd.send_signal(signal.SIGTERM)
            ends = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert status_of(lambda: next(idle.answers)) in ends, idle.answers.code()
            assert status_of(lambda: list(busy.answers)) in ends, busy.answers.code()
            seconds.append(time.monotonic() - start)
        finally:
            status, text = bed.end()
        assert status == 0, text
    assert seconds[-1] < GRACE_SECONDS, seconds


@test
def ckptd_ends_without_a_complaint(bed):
    status, text = bed.end()
    assert status == 0 and "Sanitizer" not in text and " error " not in text, text[-4000:]


def main():
    bed, good = Bed(), False
    try:
        good = lib_tap.run(TESTS, bed)
    finally:
        if bed.ckptd.poll() is None:
            bed.end()
    os._exit(not good)  # threads of grpcio that wait for requests are not waited for


main()
