"""python -m holdfast - lists checkpoints and reads tensors from the command line.

    python -m holdfast list [RUN]
    python -m holdfast show RUN@STEP
    python -m holdfast get RUN@STEP TENSOR OUT.npy
    python -m holdfast follow RUN                    # a line for each version, as it is committed
    python -m holdfast from-dcp DIRECTORY RUN@STEP   # torch's DCP directories; need torch
    python -m holdfast to-dcp RUN@STEP DIRECTORY
    python -m holdfast cross RUN@STEP NEWRUN         # between our trainer and torchtitan; --to FORM
"""
from __future__ import annotations

import argparse
import sys
from typing import List, Optional

import numpy

import holdfast


def list_checkpoints(options: argparse.Namespace) -> None:
    address = holdfast.store_address(options.store) if options.store else options.server
    with holdfast.Client(address, options.run or "any") as client:
        for info in client.list(all_runs=options.run is None):
            marks = " pinned" * info.pinned + " damaged" * bool(info.damage)
            print(f"{info.spec:40} {info.bytes / 1e9:10.3f} GB  {info.time}  {info.durability}"
                  f"{marks}")


def show(options: argparse.Namespace) -> None:
    with holdfast.open(options.checkpoint, server=options.server, store=options.store) as found:
        print(f"{found.info.spec}  {found.info.bytes} bytes  {found.info.time}  "
              f"{found.info.durability}")
        for name, tensor in found.items():
            print(f"{name}  {tensor.dtype}  {list(tensor.shape)}")
        for name in found.objects:
            print(f"{name}  object")


def get(options: argparse.Namespace) -> None:
    with holdfast.open(options.checkpoint, server=options.server, store=options.store) as found:
        numpy.save(options.out, found[options.tensor][...])


def follow(options: argparse.Namespace) -> None:
    for version in holdfast.follow(options.run, server=options.server, store=options.store,
                                   timeout=options.timeout):
        print(f"{version.info.spec}  {version.info.bytes} bytes  {version.info.time}", flush=True)


def from_dcp(options: argparse.Namespace) -> None:
    from holdfast import convert

    run, _, step = options.checkpoint.partition("@")
    if not step.isdigit():
        raise holdfast.InvalidError(f"{options.checkpoint!r} names no step", "write RUN@STEP")
    print(convert.from_dcp(options.folder, run, int(step), options.server))


def to_dcp(options: argparse.Namespace) -> None:
    from holdfast import convert

    with holdfast.open(options.checkpoint, server=options.server, store=options.store) as found:
        convert.to_dcp(found, options.folder)


def cross(options: argparse.Namespace) -> None:
    from holdfast import cross as crossing

    with holdfast.open(options.checkpoint, server=options.server, store=options.store) as found:
        print(crossing.cross(found, options.run, options.to, server=options.server,
                             head_dim=options.head_dim,
                             place=(options.tokens, options.seq_len, options.samples)
                             if options.tokens else None))


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="ckptd's address, such as unix:/run/holdfast/ckptd.sock")
    parser.add_argument("--store",
                        help="a store, read without ckptd: its directory, or s3://bucket/prefix")
    commands = parser.add_subparsers(required=True)
    listing = commands.add_parser("list")
    listing.add_argument("run", nargs="?")
    listing.set_defaults(do=list_checkpoints)
    showing = commands.add_parser("show")
    showing.add_argument("checkpoint")
    showing.set_defaults(do=show)
    getting = commands.add_parser("get")
    getting.add_argument("checkpoint")
    getting.add_argument("tensor")
    getting.add_argument("out")
    getting.set_defaults(do=get)
    following = commands.add_parser("follow")
    following.add_argument("run")
    following.add_argument("--timeout", type=float, help="seconds without a version, then an end")
    following.set_defaults(do=follow)
    reading = commands.add_parser("from-dcp")
    reading.add_argument("folder")
    reading.add_argument("checkpoint")
    reading.set_defaults(do=from_dcp)
    writing = commands.add_parser("to-dcp")
    writing.add_argument("checkpoint")
    writing.add_argument("folder")
    writing.set_defaults(do=to_dcp)
    crossing = commands.add_parser("cross")
    crossing.add_argument("checkpoint")
    crossing.add_argument("run")
    crossing.add_argument("--to", default="holdfast", help="a form, such as torchtitan")
    crossing.add_argument("--head-dim", type=int, help="width of a head, where none is stored")
    crossing.add_argument("--tokens", help="our trainer's tokens file, of which --samples samples "
                          "of --seq-len tokens count as read; without, it begins at its first")
    crossing.add_argument("--samples", type=int, default=0)
    crossing.add_argument("--seq-len", type=int, default=1)
    crossing.set_defaults(do=cross)
    options = parser.parse_args(arguments)
    try:
        options.do(options)
    except (holdfast.HoldfastError, ImportError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
