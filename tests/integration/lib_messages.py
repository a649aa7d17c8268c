"""lib_messages - the messages of ckpt.proto and health.proto for a stock gRPC client.
lib_tap.need("grpc", "google.protobuf") first."""

import os

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from lib_store import BUILD, PATIENCE

CHECKPOINT, HEALTH = "holdfast.v1.Checkpoint", "grpc.health.v1.Health"


def _read():
    pool = DescriptorPool()
    with open(os.path.join(BUILD, "tests/descriptors.pb"), "rb") as file:
        for one in FileDescriptorSet.FromString(file.read()).file:
            pool.Add(one)
    return pool


_POOL = _read()


def services():
    return [_POOL.FindServiceByName(name) for name in (CHECKPOINT, HEALTH)]


def begin(channel, service, method, /, **fields):
    """A call on its way."""
    kind = _POOL.FindServiceByName(service).FindMethodByName(method)
    unary = channel.unary_unary(
        f"/{service}/{method}", request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(kind.output_type).FromString)
    return unary.future(GetMessageClass(kind.input_type)(**fields), timeout=PATIENCE)


def call(channel, service, method, /, **fields):
    return begin(channel, service, method, **fields).result()
