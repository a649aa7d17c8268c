"""lib_ranks - ranks without a trainer: their calls by a stock gRPC client over TLS.
lib_tap.need("grpc", "google.protobuf") first."""

import grpc
from lib_messages import CHECKPOINT, begin

MIB = 1 << 20
ELEMENTS = MIB  # of F32: a shard of 4 MiB and its header


class Ranks:
    """A client with one certificate that makes the calls of ranks."""

    def __init__(self, world, name, address=None):
        self.channel = world.channel(name, address)

    def call(self, method, **fields):
        return self.begin(method, **fields).result()

    def begin(self, method, **fields):
        """A call on its way."""
        return begin(self.channel, CHECKPOINT, method, **fields)

    def open(self, run, take_over=False):
        """A run of one rank: its session."""
        attempt = self.call("OpenAttempt", run=run, world_size=1,
                            take_over=take_over).attempt
        whole = {"name": "w", "dtype": "F32", "shape": [ELEMENTS], "offset": [0],
                 "extent": [ELEMENTS]}
        return self.call("Describe", run=run, attempt=attempt, rank=0, world_size=1,
                         slices=[whole]).session

    def refused(self, method, **fields):
        """Code and text of the error; None: there was none."""
        try:
            self.call(method, **fields)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return None
