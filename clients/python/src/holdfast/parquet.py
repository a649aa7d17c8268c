"""parquet - rows of parquet files as lines of JSON, which our trainer reads:
`python -m holdfast from-parquet FILE OUT.jsonl`, or FOLDER OUT.

A row is an object with all its columns. Of a folder each FILE.parquet becomes FILE.jsonl in OUT, in
folders of the same names. A file has its name when it is whole. Memory holds some rows at a time.
"""
from __future__ import annotations

import json
import os
from typing import Iterator, Tuple

from .errors import CorruptError, NotFoundError

ROWS = 1000  # at a time


def _files(source: str, out: str) -> Iterator[Tuple[str, str]]:
    """Pairs of a file to read and one to write."""
    if not os.path.isdir(source):
        yield source, out
        return
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            stem, ending = os.path.splitext(name)
            if ending.lower() == ".parquet":
                to = os.path.join(out, os.path.relpath(folder, source), stem + ".jsonl")
                yield os.path.join(folder, name), os.path.normpath(to)


def _convert(source: str, out: str) -> int:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise ImportError("from-parquet reads by pyarrow: pip install pyarrow") from None
    rows = 0
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    try:
        with parquet.ParquetFile(source) as file, open(out + ".part", "w", encoding="utf-8") as to:
            for batch in file.iter_batches(ROWS):
                to.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())
                rows += batch.num_rows
    except ArrowInvalid as error:
        raise CorruptError(f"{source}: {error}") from None
    os.replace(out + ".part", out)
    return rows


def from_parquet(source: str, out: str) -> int:
    """Writes the rows; how many there are."""
    counts = [_convert(path, to) for path, to in _files(source, out)]
    if not counts:
        raise NotFoundError(f"{source} has no .parquet file")
    return sum(counts)
