"""corpus - converts files of other kinds for our trainer:

    python -m holdfast from-parquet FILE OUT.jsonl                 # rows, by pyarrow
    python -m holdfast from-chat FILE OUT.jsonl --model FOLDER     # conversations, by jinja2

Both write lines of JSON, and accept a folder, too: each file becomes NAME.jsonl in OUT, in folders
of the same names. A file gets its name when it is complete. Memory holds some rows at a time.

A row is an object with all its columns. A conversation is a line of JSON with a list of messages,
each with its role; it becomes {"text": ...} by the chat template of a model's folder, as
apply_chat_template() of transformers renders it. If the template writes the begin and end tokens of
a document at the ends of the text, they are removed: our trainer adds them. Its other special
tokens are tokens with `tokenizer tokens --special`.
"""
from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
from typing import Any, Callable, Dict, IO, Iterator, List, Optional, Tuple

from .errors import CorruptError, InvalidError, NotFoundError

ROWS = 1000  # at a time
JINJA_MIN = (3, 1, 6)  # a template of others leaves the sandbox of older ones
CONVERSATIONS = ("messages", "conversations", "conversation")
TEMPLATE, SETTINGS, MAP = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"


def _files(source: str, out: str, endings: Tuple[str, ...]) -> List[Tuple[str, str]]:
    """Pairs of a file to read and one to write."""
    if not os.path.isdir(source):
        return [(source, out)]
    pairs = []
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            stem, ending = os.path.splitext(name)
            if ending.lower() in endings:
                to = os.path.join(out, os.path.relpath(folder, source), stem + ".jsonl")
                pairs.append((os.path.join(folder, name), os.path.normpath(to)))
    if not pairs:
        raise NotFoundError(f"{source} has no file {' or '.join('*' + one for one in endings)}")
    return pairs


@contextlib.contextmanager
def _whole(path: str) -> Iterator[IO[str]]:
    """A file that has its name when all is written."""
    part = path + ".part"
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    try:
        with open(part, "w", encoding="utf-8") as file:
            yield file
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)


# ---- parquet ----


def from_parquet(source: str, out: str) -> int:
    """Writes the rows of a file or of a folder's files; how many there are."""
    return sum(_convert_rows(path, to) for path, to in _files(source, out, (".parquet",)))


def _convert_rows(source: str, out: str) -> int:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise ImportError("from-parquet reads by pyarrow: pip install pyarrow") from None
    rows = 0
    try:
        with parquet.ParquetFile(source) as file, _whole(out) as to:
            for batch in file.iter_batches(ROWS):
                to.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())
                rows += batch.num_rows
    except ArrowInvalid as error:
        raise CorruptError(f"{source}: {error}") from None
    return rows


# ---- conversations ----


def from_chat(source: str, out: str, model: str) -> int:
    """Writes the conversations of a file or of a folder's files; how many there are."""
    template = Template(model)
    return sum(_convert_chats(path, to, template)
               for path, to in _files(source, out, (".jsonl", ".ndjson")))


def _convert_chats(source: str, out: str, template: "Template") -> int:
    count = 0
    with open(source, encoding="utf-8-sig") as file, _whole(out) as to:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    text = template.text_of(json.loads(line))
                except (ValueError, InvalidError) as error:
                    message = getattr(error, "message", str(error))
                    raise InvalidError(f"{source}, line {number}: {message}",
                                       getattr(error, "hint", "")) from None
                to.write(json.dumps({"text": text}) + "\n")
                count += 1
    return count


class Template:
    """The chat template of a model's folder, and its special tokens by their names."""

    def __init__(self, folder: str) -> None:
        settings = _read_json(os.path.join(folder, SETTINGS))
        found = settings.get("chat_template")
        path = os.path.join(folder, TEMPLATE)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found = file.read()
        if isinstance(found, list):  # several, each with a name
            found = {one["name"]: one["template"] for one in found}
        sources: Dict[str, Any] = found if isinstance(found, dict) else {"default": found}
        if not isinstance(sources.get("default"), str):
            raise NotFoundError(f"{folder} has no chat template",
                                f"it lies in {TEMPLATE} or in {SETTINGS} as chat_template: name "
                                "the folder of a model that was trained to chat")
        named = {**_read_json(os.path.join(folder, MAP)), **settings}
        tokens = {name: _token_of(value) for name, value in named.items()
                  if name.endswith("_token")}
        self.tokens = {name: token for name, token in tokens.items() if token is not None}
        self._templates = {name: _compiled(source, f"the chat template of {folder}")
                           for name, source in sources.items() if name in ("default", "tool_use")}

    def text_of(self, row: Any) -> str:
        """Of one line of a file."""
        messages = _messages_of(row)
        tools = row.get("tools") or None
        tools = json.loads(tools) if isinstance(tools, str) else tools
        render = self._templates.get("tool_use" if tools else "default",
                                     self._templates["default"])
        text = render(messages=messages, tools=tools, documents=None, add_generation_prompt=False,
                      **self.tokens)
        return text.removeprefix(self.tokens.get("bos_token", "")).removesuffix(
            self.tokens.get("eos_token", ""))


def _read_json(path: str) -> Dict[str, Any]:
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        try:
            found = json.load(file)
        except ValueError as error:
            raise InvalidError(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _token_of(value: Any) -> Optional[str]:
    """A special token is a text, or an object with it."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _messages_of(row: Any) -> List[Any]:
    members = row if isinstance(row, dict) else {}
    found = next((members[name] for name in CONVERSATIONS if isinstance(members.get(name), list)),
                 None)
    if not found:
        raise InvalidError(f"there is no list {' or '.join(CONVERSATIONS)}",
                           "a line is an object with the messages of one conversation")
    for message in found:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidError("a message has no \"role\"",
                               "a message is an object such as {\"role\": \"user\", \"content\": "
                               "\"...\"}; rename the members of others")
    return found


# ---- templates, as transformers renders them ----


def _compiled(source: str, what: str) -> Callable[..., str]:
    """Renders a template. InvalidError: it is unsupported."""
    try:
        import jinja2
        from jinja2 import sandbox
    except ImportError:
        raise ImportError("from-chat renders by jinja2: pip install jinja2") from None
    if tuple(map(int, re.findall(r"\d+", jinja2.__version__)[:3])) < JINJA_MIN:
        raise ImportError(f"from-chat needs jinja2 {'.'.join(map(str, JINJA_MIN))} or newer, and "
                          f"{jinja2.__version__} is installed: pip install -U jinja2")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols",
                                                          _generation_tag()])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=_now)

    def render(**values: Any) -> str:
        try:
            return template.render(**values)
        except Exception as error:  # a foreign template may raise anything
            raise InvalidError(f"{what} refuses it: {error}") from None

    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise InvalidError(f"{what} cannot be read: {error}") from None
    return render


def _generation_tag() -> Any:
    """{% generation %} marks the answers of a model: its body is rendered unchanged."""
    from jinja2 import ext, nodes

    class Generation(ext.Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return Generation


def _to_json(value: Any, ensure_ascii: bool = False, indent: Optional[int] = None,
             separators: Any = None, sort_keys: bool = False) -> str:
    """Jinja's own would write HTML's escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise ValueError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
