"""lib_messages - the messages of ckpt.proto and health.proto for a stock gRPC client.
lib_tap.need("grpc", "google.protobuf") first."""

import os

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from lib_store import BUILD, PATIENCE

CHECKPOINT, HEALTH = "holdfast.v1.Checkpoint", "grpc.health.v1.Health"


def _read():
    pool = DescriptorPool()
    with open(os.path.join(BUILD, "tests/descriptors.pb"), "rb") as file:
        for one in FileDescriptorSet.FromString(file.read()).file:
            pool.AddSerializedFile(one.SerializeToString())
    return pool


_POOL = _read()


def _class_of(kind):
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(kind)
    return message_factory.MessageFactory(_POOL).GetPrototype(kind)  # before protobuf 4.22


def services():
    return [_POOL.FindServiceByName(name) for name in (CHECKPOINT, HEALTH)]


def begin(channel, service, method, /, **fields):
    """A call on its way."""
    kind = _POOL.FindServiceByName(service).FindMethodByName(method)
    unary = channel.unary_unary(
        f"/{service}/{method}", request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=_class_of(kind.output_type).FromString)
    return unary.future(_class_of(kind.input_type)(**fields), timeout=PATIENCE)


def call(channel, service, method, /, **fields):
    return begin(channel, service, method, **fields).result()
