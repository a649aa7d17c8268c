#!/usr/bin/env python3
"""stock_client - a stock gRPC client calls ckptd by our .proto files.

Goal: every method of the files that `make install` leaves is served, and no other. Method: a real
ckptd with the checkpoints of ckpt_example in it; Python's grpcio, and message classes that are made
of the files at run time.
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402

lib_tap.need("grpc", "google.protobuf")
import grpc  # noqa: E402
from lib_messages import CHECKPOINT, HEALTH, call, services  # noqa: E402
from lib_store import BUILD, PATIENCE, World  # noqa: E402
from lib_tap import test  # noqa: E402

PROTOCOL = 2  # as in proto/wire/rpc.h


def status_of(function):
    """The gRPC status that `function` fails with."""
    try:
        result = function()
    except grpc.RpcError as error:
        return error.code()
    raise AssertionError(f"no error, but {result}")


def hello_is_answered(world, channel):
    reply = call(channel, CHECKPOINT, "Hello", protocol=PROTOCOL)
    test("hello is answered", reply.protocol == PROTOCOL and reply.boot_id != 0
         and reply.version != "" and reply.arena_socket == f"{world.folder}/s.arena", reply)


def list_names_the_checkpoints_of_the_example(world, channel):
    program = [os.path.join(BUILD, "ckpt_example"), world.server]
    subprocess.run(program, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
    listed = call(channel, CHECKPOINT, "List").checkpoints
    test("list names the checkpoints", 3 in [one.step for one in listed] and all(
        one.world_size == 2 and one.attempt == 1 for one in listed), listed)


def health_says_serving(world, channel):
    for service in ("", CHECKPOINT):
        reply = call(channel, HEALTH, "Check", service=service)
        values = reply.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number
        test(f"the health of {service or 'the server'} is serving",
             values[reply.status].name == "SERVING", reply)
    status = status_of(lambda: call(channel, HEALTH, "Check", service="no.such"))
    test("that of another service is not found", status == grpc.StatusCode.NOT_FOUND, status)


def every_method_of_the_files_is_served_and_no_other(world, channel):
    for service in services():
        unknown = []
        for method in service.methods:
            try:
                call(channel, service.full_name, method.name)
            except grpc.RpcError as error:  # an empty request is wrong for most of them
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    unknown.append(method.name)
        test(f"every method of {service.full_name} is served", not unknown, unknown)
    for method in (f"/{CHECKPOINT}/NoSuch", "/no.such.Service/Hello"):
        status = status_of(lambda: channel.unary_unary(method)(b"", timeout=PATIENCE))
        test(f"{method} is not", status == grpc.StatusCode.UNIMPLEMENTED, status)


def main():
    world = World()
    world.start("--memory.pool_bytes", "64MiB", "--memory.segment_bytes", "4MiB")
    try:
        with grpc.insecure_channel(world.server) as channel:
            for story in (hello_is_answered, list_names_the_checkpoints_of_the_example,
                          health_says_serving, every_method_of_the_files_is_served_and_no_other):
                story(world, channel)
    finally:
        world.close()
    return lib_tap.end()


sys.exit(not main())
