#!/usr/bin/env python3
"""stock_client - a stock gRPC client calls ckptd by our .proto files.

Goal: every method of the installed .proto files is served, and no other. Method: a real ckptd;
Python's grpcio, and message classes that are made from the files at run time. The methods' answers:
tests/unit/proto_rpc.c, server.py.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402

lib_tap.need("grpc", "google.protobuf")
import grpc  # noqa: E402
from lib_messages import CHECKPOINT, call, services  # noqa: E402
from lib_store import PATIENCE, World  # noqa: E402
from lib_tap import test  # noqa: E402


def status_of(function):
    """The gRPC status that `function` fails with."""
    try:
        result = function()
    except grpc.RpcError as error:
        return error.code()
    raise AssertionError(f"no error, but {result}")


def every_method_of_the_files_is_served_and_no_other(channel):
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
            every_method_of_the_files_is_served_and_no_other(channel)
    finally:
        world.close()
    return lib_tap.end()


sys.exit(not main())
