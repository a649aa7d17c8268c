"""python -m holdfast - lists checkpoints and reads tensors from the command line.

    python -m holdfast list [RUN]
    python -m holdfast show RUN@STEP
    python -m holdfast get RUN@STEP TENSOR OUT.npy
    python -m holdfast follow RUN                    # a line for each version, as it is committed
    python -m holdfast from-dcp DIRECTORY RUN@STEP   # torch's DCP directories, as ckpt-cli does
    python -m holdfast to-dcp RUN@STEP DIRECTORY     # these take --json
    python -m holdfast from-safetensors DIRECTORY RUN@STEP    # of any names; to-safetensors too
    python -m holdfast cross RUN@STEP NEWRUN         # to our trainer from torchtitan's or Hugging
                                                     # Face's, or from ours: --to FORM
    python -m holdfast serve --store DIR ...         # ckptd, as it is in the wheel or on the PATH
    python -m holdfast cli list --store DIR ...      # ckpt-cli, likewise
    python -m holdfast from-parquet FILE OUT.jsonl   # text for our trainer, by pyarrow; or folders
    python -m holdfast from-chat FILE OUT.jsonl --model FOLDER  # conversations in JSON lines, as
                                                     # text by the model's chat template; or folders

--server, --store and --json stand before or behind the command. Exit codes are those of ckpt-cli.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from typing import Any, Dict, List, Optional

import numpy

import holdfast
from holdfast import dtypes


def list_checkpoints(options: argparse.Namespace) -> None:
    from holdfast.convert import text_bytes

    address = holdfast.store_address(options.store) if options.store else options.server
    with holdfast.Client(address, options.run or "any") as client:
        found = client.list(all_runs=options.run is None)
    for info in sorted(found, key=lambda info: info.run):
        marks = " pinned" * info.pinned + " damaged" * bool(info.damage)
        print(f"{info.spec:40} {text_bytes(info.bytes):>11}  {info.time}  {info.durability}{marks}")


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


def bring_in(options: argparse.Namespace) -> None:
    """from-dcp, from-safetensors."""
    from holdfast import convert, safetensors_files

    if options.store:
        raise holdfast.InvalidError(f"{options.command} saves through ckptd, which --store does "
                                    "not use", "name a --server")
    read = {"from-dcp": convert.from_dcp,
            "from-safetensors": safetensors_files.from_safetensors}[options.command]
    run, _, step = options.checkpoint.partition("@")
    if not step.isdigit():
        raise holdfast.InvalidError(f"{options.checkpoint!r} names no step", "write RUN@STEP")
    done = read(options.folder, run, int(step), options.server, not options.json)
    report(options, done, f"saved from {options.folder}")


def write_out(options: argparse.Namespace) -> None:
    """to-dcp, to-safetensors."""
    from holdfast import convert, safetensors_files

    with holdfast.open(options.checkpoint, server=options.server, store=options.store) as found:
        if options.command == "to-dcp":
            done = convert.to_dcp(found, options.folder, not options.json)
        else:
            done = safetensors_files.to_safetensors(found, options.folder, not options.json,
                                                    weights_only=options.weights_only,
                                                    dtype=options.dtype)
    report(options, done, f"written to {options.folder}")


def report(options: argparse.Namespace, done: Any, what: str) -> None:
    """Prints the result of a conversion like ckpt-cli's commands."""
    from holdfast.convert import text_bytes

    if options.json:
        print(json.dumps(vars(done)))
        return
    tensors = f"{done.tensors} tensor{'s' * (done.tensors != 1)}"
    copied = f", with {' and '.join(done.files)} as they are" if done.files else ""
    print(printable(f"{done.checkpoint}: {tensors}, {text_bytes(done.bytes)}, {what}{copied}, "
                    f"{done.durability}"))


def printable(line: str) -> str:
    """Without control characters."""
    return "".join(one if one.isprintable() else "?" for one in line)


def cross(options: argparse.Namespace) -> None:
    from holdfast import cross as crossing

    with holdfast.open(options.checkpoint, server=options.server, store=options.store) as found:
        print(crossing.cross(found, options.run, options.to, server=options.server,
                             head_dim=options.head_dim,
                             place=(options.tokens, options.seq_len, options.samples)
                             if options.tokens else None))


PROGRAMS = {"serve": "ckptd", "cli": "ckpt-cli"}


def become(program: str, arguments: List[str]) -> None:
    """Replaces this process by the program."""
    native = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native", program)
    found = native if os.access(native, os.X_OK) else shutil.which(program)
    if found is None:
        raise holdfast.NotFoundError(f"there is no {program} in {os.path.dirname(native)}, nor on "
                                     "the PATH", "install the wheel of `make python`")
    os.environ.setdefault("HOLDFAST_PYTHON", sys.executable)  # of ckpt-cli's commands in Python
    os.execv(found, [program, *arguments])


def convert_corpus(options: argparse.Namespace) -> None:
    """from-parquet, from-chat."""
    from holdfast import corpus

    if options.command == "from-parquet":
        rows = corpus.from_parquet(options.source, options.out)
    else:
        rows = corpus.from_chat(options.source, options.out, options.model)
    print(json.dumps({"rows": rows}) if options.json else printable(f"{options.out}: {rows} rows"))


EXIT_CODES: Dict[int, int] = {
    holdfast.InvalidError.code: 2, holdfast.NotFoundError.code: 66, holdfast.CorruptError.code: 1,
    holdfast.MismatchError.code: 1, holdfast.VersionError.code: 65,
    holdfast.UnavailableError.code: 69, holdfast.TimeoutError.code: 69,
    **{kind.code: 74 for kind in (holdfast.ExistsError, holdfast.StaleError, holdfast.BusyError,
                                  holdfast.SpaceError, holdfast.StorageError,
                                  holdfast.DeniedError, holdfast.UnsettledError)}}


def fail(error: Exception, as_json: bool) -> int:
    """Prints an error like ckpt-cli; returns the exit code."""
    if isinstance(error, holdfast.HoldfastError):
        code, name = EXIT_CODES.get(error.code, 70), type(error).__name__
        message, hint = error.message, error.hint
    else:
        code = 69 if isinstance(error, ImportError) else 74
        name, message, hint = type(error).__name__, str(error), ""
    if as_json:
        print(json.dumps({"error": name, "exit_code": code, "message": message, "detail": "",
                          "hint": hint}), file=sys.stderr)
    else:
        print(printable(f"holdfast: {message}" + (f" ({hint})" if hint else "")), file=sys.stderr)
    return code


def add_common(parser: argparse.ArgumentParser, default: Any) -> argparse.ArgumentParser:
    """Options of every command; a command's parser keeps those before the command."""
    parser.add_argument("--server", default=default,
                        help="ckptd's address, such as unix:/run/holdfast/ckptd.sock")
    parser.add_argument("--store", default=default,
                        help="a store, read without ckptd: its directory, or s3://bucket/prefix")
    parser.add_argument("--json", action="store_true", default=default,
                        help="of conversions: one JSON document on stdout")
    return parser


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = add_common(parser, None).add_subparsers(required=True)

    def command(name: str) -> argparse.ArgumentParser:
        return add_common(commands.add_parser(name), argparse.SUPPRESS)

    listing = command("list")
    listing.add_argument("run", nargs="?")
    listing.set_defaults(do=list_checkpoints)
    showing = command("show")
    showing.add_argument("checkpoint")
    showing.set_defaults(do=show)
    getting = command("get")
    getting.add_argument("checkpoint")
    getting.add_argument("tensor")
    getting.add_argument("out")
    getting.set_defaults(do=get)
    following = command("follow")
    following.add_argument("run")
    following.add_argument("--timeout", type=float, help="seconds without a version, then an end")
    following.set_defaults(do=follow)
    for name in ("from-dcp", "from-safetensors"):
        reading = command(name)
        reading.add_argument("folder")
        reading.add_argument("checkpoint")
        reading.set_defaults(do=bring_in, command=name)
    for name in ("to-dcp", "to-safetensors"):
        writing = command(name)
        writing.add_argument("checkpoint")
        writing.add_argument("folder")
        writing.set_defaults(do=write_out, command=name)
        if name == "to-safetensors":
            writing.add_argument("--weights-only", action="store_true",
                                 help="leave the optimizer's tensors out; of Hugging Face's "
                                 "Trainer a folder that from_pretrained() takes")
            writing.add_argument("--dtype", default="keep", choices=("keep", *dtypes.SHORT),
                                 help="of floats of 16 and 32 bits, rounded to nearest even")
    crossing = command("cross")
    crossing.add_argument("checkpoint")
    crossing.add_argument("run")
    crossing.add_argument("--to", default="holdfast",
                          help="a form, such as torchtitan or huggingface")
    crossing.add_argument("--head-dim", type=int, help="width of a head, where none is stored")
    crossing.add_argument("--tokens", help="our trainer's tokens file, of which --samples samples "
                          "of --seq-len tokens count as read; without, it begins at its first")
    crossing.add_argument("--samples", type=int, default=0)
    crossing.add_argument("--seq-len", type=int, default=1)
    crossing.set_defaults(do=cross)
    for name in ("from-parquet", "from-chat"):
        rows = command(name)
        rows.add_argument("source", help="a file, or a folder of them")
        rows.add_argument("out", help="a file, or a folder of as many")
        rows.set_defaults(do=convert_corpus, command=name)
        if name == "from-chat":
            rows.add_argument("--model", required=True,
                              help="the folder of a model, with its chat template in "
                              "tokenizer_config.json or chat_template.jinja")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and given[0] in PROGRAMS:
            become(PROGRAMS[given[0]], given[1:])
    except (holdfast.HoldfastError, OSError) as error:
        return fail(error, False)
    options = parser.parse_args(given)
    try:
        options.do(options)
        sys.stdout.flush()
    except (holdfast.HoldfastError, ImportError, OSError) as error:
        return fail(error, options.json)
    return 0


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGPIPE):  # end as other programs do
        signal.signal(number, signal.SIG_DFL)
    sys.exit(main())
