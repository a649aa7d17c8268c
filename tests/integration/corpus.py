#!/usr/bin/env python3
"""corpus - `tokenizer tokens` on text and JSON lines, packed or not, and on folders.

Goal: the tokens file holds the documents in the order of the files' paths, each between the special
tokens. It has the same bytes packed or not and with any number of threads. Of a prompt and an
answer only the prompt is excluded from the loss. Bad lines are skipped and named, up to a share.
Bad input is one line that names file, line and remedy, and leaves no file; rows of parquet and
conversations become lines. The trainer tokenizes a folder once, also when several runs start on it
at the same time, and again when its files have changed; c4 says where to put its files.

Method: small corpora of random words, large enough for many jobs; the file is read here, by its
description in tokens_file.h.
"""
import gzip
import importlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import lib_tap
from lib_terminal import CLEARED, on_a_terminal

TOKENIZER = os.path.join(os.path.abspath(os.environ.get("BUILD", "build")), "tokenizer")
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../clients/python/src")
PYTHON = os.environ.get("PYTHON") or sys.executable
VOCAB = 290
BEGIN, END = VOCAB - 2, VOCAB - 1
BLOCK = 16384
SCALE = float(os.environ.get("TEST_TIME_SCALE", 1))


def bits(plane, count):
    return [plane[i // 8] >> i % 8 & 1 for i in range(count)]


def read_tokens(path):
    """(tokens, documents' first places, places that are not trained on)"""
    with open(path, "rb") as file:
        raw = file.read()
    _, version, start, width, _, count = struct.unpack_from("<8sIIIIQ", raw)
    documents, trained, blocks, table, block_tokens, flags = struct.unpack_from("<QQQQII", raw, 104)
    assert (version, width, block_tokens) == (2, 2, BLOCK), (version, width, block_tokens)
    tokens, begins, masked = [], [], []
    planes = 1 + (flags & 1)
    for i in range(blocks):
        at = start + i * (BLOCK * width + planes * BLOCK // 8)
        here = min(BLOCK, count - i * BLOCK)
        tokens += struct.unpack_from(f"<{here}H", raw, at)
        at += BLOCK * width
        begins += bits(raw[at:at + BLOCK // 8], here)
        masked += bits(raw[at + BLOCK // 8:], here) if flags & 1 else [0] * here
    assert table + 8 * blocks == len(raw) and sum(begins) == documents
    assert len(tokens) == count and count - sum(masked) == trained
    return tokens, [i for i in range(count) if begins[i]], [i for i in range(count) if masked[i]]


class Bed:
    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="hf-corpus-", dir=os.environ.get("TMPDIR"))
        draw = random.Random(7)
        words = "the of a training loss gradient \u00fcber 1234 don't\nend".split(" ")
        self.texts = [" ".join(draw.choice(words) for _ in range(draw.randrange(1, 400)))
                      for _ in range(700)]
        self.long = "\n".join(draw.choice(words) * 9 for _ in range(90000))
        self.write("train.txt", "\n".join(self.texts[:50]).encode())
        self.run("train", "--vocab", VOCAB, "--out", self.path("model"), self.path("train.txt"))

    def path(self, *names):
        return os.path.join(self.root, *names)

    def write(self, name, content):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def run(self, *command, want=0):
        done = subprocess.run([TOKENIZER, *map(str, command)], capture_output=True, text=True)
        assert done.returncode == want, (command, done.returncode, done.stderr)
        return done.stdout if want == 0 else done.stderr

    def make(self, *inputs, out="out", want=0):
        said = self.run("tokens", "--tokenizer", self.path("model"), "--out", self.path(out),
                        *inputs, want=want)
        if want != 0:
            assert not [name for name in os.listdir(self.root) if name.startswith(out)], said
        return said

    def encoded(self, text):
        path = self.write("text", text.encode())
        return [int(word) for word in
                self.run("encode", "--tokenizer", self.path("model"), path).split()]

    def bytes_of(self, *inputs):
        self.make(*inputs)
        with open(self.path("out"), "rb") as file:
            content = file.read()
        os.remove(self.path("out"))
        return content


def lines(texts):
    return "".join(json.dumps({"text": text, "url": "x"}) + "\n" for text in texts).encode()


def zstd(bed, name, content):
    """By the system's zstd where it exists: Python does not have one yet."""
    path = bed.write(name[:-4], content)
    subprocess.run(["zstd", "-q", "--rm", path], check=True)
    return bed.path(name)


def documents_stand_between_the_special_tokens(bed):
    bed.write("f/b.jsonl", lines(bed.texts[:9]))
    bed.write("f/a/z.txt", bed.texts[10].encode())
    bed.write("f/c.md", bed.texts[11].encode())
    bed.write("f/empty.txt", b"")
    bed.write("f/.hidden.txt", b"no")
    said = json.loads(bed.run("tokens", "--json", "--tokenizer", bed.path("model"), "--out",
                              bed.path("out"), bed.path("f")))
    tokens, begins, masked = read_tokens(bed.path("out"))
    want, starts = [], []
    for text in [bed.texts[10], *bed.texts[:9], bed.texts[11]]:
        starts.append(len(want))
        want += [BEGIN, *bed.encoded(text), END]
    assert (tokens, begins, masked) == (want, starts, [])
    assert (said["tokens"], said["documents"], said["files"]) == (len(want), 11, 4), said


def packed_or_not_and_on_any_threads_the_file_is_the_same(bed):
    text, jsonl = bed.long.encode(), lines(bed.texts * 8)
    plain = [bed.write("p/1.txt", text), bed.write("p/2.jsonl", jsonl)]
    want = bed.bytes_of("--threads", 1, *plain)
    # a file of two members, as tools that pack in parallel write them
    packed = [bed.write("q/1.txt.gz", gzip.compress(text[:99999]) + gzip.compress(text[99999:])),
              bed.write("q/2.jsonl.gz", gzip.compress(jsonl))]
    assert bed.bytes_of("--threads", 3, *packed) == want
    assert bed.bytes_of("--threads", 8, bed.path("p")) == want
    bed.make(*plain)
    tokens, begins, _ = read_tokens(bed.path("out"))
    assert tokens[1:begins[1] - 1] == bed.encoded(bed.long)  # the parts of one text, joined again
    if shutil.which("zstd"):
        packed = [zstd(bed, "z/1.txt.zst", text), zstd(bed, "z/2.jsonl.zst", jsonl)]
        assert bed.bytes_of("--threads", 2, *packed) == want


def what_packers_and_names_have_of_their_own_is_read(bed):
    text = bed.texts[3].encode()
    want = bed.bytes_of(bed.write("t.txt", text))
    for size in 1, 300000:  # beyond the reader's buffer
        assert bed.bytes_of(bed.write("t.TXT.GZ", gzip.compress(text) + bytes(size))) == want
    parts = gzip.compress(text[:50]) + bytes(512) + gzip.compress(text[50:])
    assert bed.bytes_of(bed.write("t.txt.gz", parts)) == want
    # a frame with a window of 2 GiB, as of zstd --long=31: one block, the last, as it is
    frame = b"\x28\xb5\x2f\xfd\x00\xa8" + struct.pack("<I", len(text) << 3 | 1)[:3] + text
    assert bed.bytes_of(bed.write("t.Text.Zst", frame)) == want
    jsonl = lines(bed.texts[:5])
    want = bed.bytes_of(bed.write("t.jsonl", jsonl))
    assert bed.bytes_of(bed.write("t.JSONL", jsonl)) == want


def what_a_folder_has_beside_text_is_counted_and_named(bed):
    bed.write("l/A.TXT", b"text")
    for name in "c.csv", "b.parquet", "in/x.png", "in/y.png":
        bed.write("l/" + name, b"no")
    done = subprocess.run([TOKENIZER, "tokens", "--json", "--tokenizer", bed.path("model"), "--out",
                           bed.path("out"), bed.path("l")], capture_output=True, text=True)
    said = json.loads(done.stdout)
    assert (said["files"], said["left_out_files"]) == (1, 4), said
    names = ", ".join(bed.path("l", name) for name in ("b.parquet", "c.csv", "in/x.png"))
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(
        "files left out because their names are not those of text files: "
        f"4 ({names}, ...)\n"), done.stderr


def long_work_has_a_bar_on_a_terminal_and_nowhere_else(bed):
    command = (TOKENIZER, "tokens", "--threads", 2, "--tokenizer", bed.path("model"), "--out",
               bed.path("bar"), bed.path("p"))
    shown, code, out = on_a_terminal(*command)
    parts = [int(part) for part in re.findall(r"\r\x1b\[Kencoding  \[[#.]+\] +(\d+)%", shown)]
    assert code == 0 and "tokens of a vocabulary" in out, (code, out)
    assert len(parts) > 5 and parts == sorted(parts) and parts[-1] == 100, shown
    assert shown.endswith(CLEARED), shown[-100:]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def a_prompt_is_read_but_not_trained_on(bed):
    pairs = [("two and two?", " four"), ("", "no prompt"), ("no answer", "")]
    path = bed.write("pairs.jsonl", "".join(
        json.dumps({"q": prompt, "a": answer}) + "\n\n" for prompt, answer in pairs).encode())
    bed.make("--prompt_field", "q", "--answer_field", "a", path)
    tokens, begins, masked = read_tokens(bed.path("out"))
    prompt, answer, other = (bed.encoded(text) for text in ("two and two?", " four", "no prompt"))
    first = [BEGIN, *prompt, *answer, END]
    assert tokens == first + [BEGIN, *other, END], tokens
    assert begins == [0, len(first)] and masked == [*range(1 + len(prompt)), len(first)], masked


def several_members_are_joined_by_a_line_break(bed):
    want = bed.bytes_of(bed.write("want.jsonl", lines(["a title\na text", "b\nno title"])))
    for other in b"1", b"NaN":
        path = bed.write("parts.jsonl", b'{"x": %s, "t": "a title", "b": "a text"}\n'
                         b'{"t": "", "b": "b\\nno title"}\n' % other)
        assert bed.bytes_of("--field", "t,b", path) == want
    path = bed.write("comma.jsonl", b'{"t,b": "a title\\na text"}\n{"t,b": "b\\nno title"}\n')
    assert bed.bytes_of("--field", "t,b", path) == want
    assert 'no member "c"' in bed.make("--field", "t,c", bed.path("parts.jsonl"), want=78)


def special_tokens_in_the_text_are_tokens_when_asked_for(bed):
    path = bed.write("s.txt", b"a<|end_of_text|>b")
    bed.make(path)
    assert END not in read_tokens(bed.path("out"))[0][:-1]
    bed.make("--special", path)
    assert read_tokens(bed.path("out"))[0] == [BEGIN, ord("a"), END, ord("b"), END]
    os.remove(bed.path("out"))


def a_byte_order_mark_is_no_part_of_the_text(bed):
    mark, text = b"\xef\xbb\xbf", bed.texts[3].encode()
    for name, content in ("m.txt", text), ("m.jsonl", lines(bed.texts[:5])):
        want = bed.bytes_of(bed.write(name, content))
        assert bed.bytes_of(bed.write(name, mark + content)) == want, name
    both = lines(bed.texts[5:]) + lines(bed.texts[:5])  # of files that were joined
    want = bed.bytes_of(bed.write("m.jsonl", both))
    marked = mark + lines(bed.texts[5:]) + mark + lines(bed.texts[:5])
    assert bed.bytes_of(bed.write("m.jsonl", marked)) == want
    want = bed.bytes_of(bed.write("m/a.txt", text))
    bed.write("m/b.txt", mark)  # no document
    assert bed.bytes_of(bed.path("m")) == want
    for name, order in ("w.txt", "utf-16-le"), ("w.jsonl", "utf-16-be"):
        said = bed.make(bed.write(name, "\ufeff{}".encode(order)), want=78)
        assert f"{name} begins with" in said and "UTF-16" in said and "iconv" in said, said


def what_is_no_text_is_refused_by_name(bed):
    parquet = b"PAR1\x15\x04\x15\x00" + b"text" * 9 + b"PAR1"
    for name in "rows.parquet", "rows.jsonl":
        said = bed.make(bed.write(name, parquet), want=78)
        assert f"{name} is a parquet file" in said and "from-parquet" in said, said
    bed.bytes_of(bed.write("par.txt", b"PAR1 is a text, too"))
    late = bed.write("late.txt", bed.long.encode() + b"\0\n")  # in the last of many parts
    assert "late.txt has zero bytes" in bed.make(late, want=78)
    said = bed.run("train", "--vocab", 260, "--out", bed.path("none.model"), late, want=78)
    assert "late.txt has zero bytes" in said, said
    bed.write("none/a.parquet", parquet)
    said = bed.make(bed.path("none"), want=78)
    assert "no file of text" in said and "from-parquet" in said, said


def rows_of_parquet_become_lines_of_json(bed):
    try:
        pyarrow, parquet, _ = map(importlib.import_module, ("pyarrow", "pyarrow.parquet", "numpy"))
    except ImportError as missing:
        raise lib_tap.Skip(f"the Python module {missing.name} is missing") from None
    rows = [{"text": text, "score": float("nan")} for text in ["\u00fcber\n\"", *bed.texts[:2000]]]
    os.makedirs(bed.path("rows/in"))
    parquet.write_table(pyarrow.Table.from_pylist(rows), bed.path("rows/in/a.parquet"))
    for source, out in ("rows/in/a.parquet", "rows.jsonl"), ("rows", "rows.out"):
        done = subprocess.run([sys.executable, "-m", "holdfast", "from-parquet", bed.path(source),
                               bed.path(out)], capture_output=True, text=True,
                              env=dict(os.environ, PYTHONPATH=PACKAGE))
        assert done.returncode == 0, done.stderr
    assert os.listdir(bed.path("rows.out/in")) == ["a.jsonl"]
    want = bed.bytes_of(bed.write("want.jsonl", lines(row["text"] for row in rows)))
    assert bed.bytes_of(bed.path("rows.jsonl")) == bed.bytes_of(bed.path("rows.out")) == want


CHAT = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == "elf" %}{{ raise_exception("no elves") }}{% endif %}
    {{- "<" + message["role"] + ">" + message.content | trim }}
    {%- for call in message.tool_calls %}{{ call | tojson }}{% endfor %}
    {%- if message.role == "assistant" %}
        {%- generation %}!{% endgeneration %}{{ eos_token }}{% endif %}
{% endfor %}
{%- if tools %}{{ tools | length }} tools{{ strftime_now("%Y")[:0] }}{{ pad_token }}{% endif %}"""


def from_chat(bed, source, out, want=0):
    done = subprocess.run([PYTHON, "-m", "holdfast", "from-chat", bed.path(source),
                           bed.path(out), "--model", bed.path("chat")], capture_output=True,
                          text=True, env=dict(os.environ, PYTHONPATH=PACKAGE))
    assert done.returncode == want, done
    return done.stdout if want == 0 else done.stderr


def conversations_become_text_by_the_template_of_a_model(bed):
    """Without the tokens that the trainer puts around a document."""
    for name in ("jinja2", "numpy"):
        if subprocess.run([PYTHON, "-c", f"import {name}"], stderr=subprocess.DEVNULL).returncode:
            raise lib_tap.Skip(f"the Python module {name} is missing")
    settings = {"bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|end_of_text|>"}
    bed.write("chat/tokenizer_config.json", json.dumps(settings).encode())
    chats = [
        {"messages": [{"role": "user", "content": " a & \u00fc "},
                      {"role": "assistant", "content": "b", "tool_calls": [{"x": "<\u00fc>"}]},
                      {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]},
        {"conversations": [{"role": "user", "content": "e"}], "tools": [{}, {}]}]
    want = ['<user>a & \u00fc<assistant>b{"x": "<\u00fc>"}!<|end_of_text|><user>c<assistant>d!',
            "<user>e2 toolsP"]
    bed.write("chats/in/c.JSONL", "\n\n".join(map(json.dumps, chats)).encode())
    assert "has no chat template" in from_chat(bed, "chats", "chats.out", want=66)
    bed.write("chat/special_tokens_map.json", b'{"pad_token": "P", "eos_token": "other"}')
    bed.write("chat/chat_template.jinja", CHAT.encode())
    assert from_chat(bed, "chats", "chats.out").endswith("chats.out: 2 rows\n")
    with open(bed.path("chats.out/in/c.jsonl")) as file:
        assert [json.loads(line) for line in file] == [{"text": text} for text in want]
    bed.make("--special", bed.path("chats.out"))
    tokens, begins, _ = read_tokens(bed.path("out"))
    assert tokens.count(BEGIN) == 2 == len(begins) and tokens.count(END) == 3, tokens
    os.remove(bed.path("out"))
    for content, words in (
            ('{"messages": [{"role": "elf", "content": ""}]}', ("no elves", "chat refuses it")),
            ('{"messages": [{"from": "human", "value": ""}]}', ('no "role"',)),
            ('{"messages": []}', ("no list messages",)), ("{", ("line 2",)),
            ('{"messages": [{"role": "x", "content": 5}]}\n{', ("line 3",))):
        bed.write("bad.jsonl", b"\n" + content.encode())
        said = from_chat(bed, "bad.jsonl", "bad.out", want=2)
        assert "bad.jsonl, line " in said and all(word in said for word in words), said
        assert not [name for name in os.listdir(bed.root) if name.startswith("bad.out")]
    for template in "{% if %}", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}":
        bed.write("chat/chat_template.jinja", template.encode())
        assert "chat template of" in from_chat(bed, "chats", "no.out", want=2)
    named = {"chat_template": [{"name": "default", "template": "plain"},
                               {"name": "tool_use", "template": "with tools"}]}
    os.remove(bed.path("chat/chat_template.jinja"))
    bed.write("chat/tokenizer_config.json", json.dumps({**settings, **named}).encode())
    from_chat(bed, "chats/in/c.JSONL", "named.jsonl")
    with open(bed.path("named.jsonl")) as file:
        assert [json.loads(line)["text"] for line in file] == ["plain", "with tools"]


def said_of(bed, *inputs):
    done = subprocess.run([TOKENIZER, "tokens", "--tokenizer", bed.path("model"), "--out",
                           bed.path("out"), *map(str, inputs)], capture_output=True, text=True)
    return done.returncode, done.stderr


def a_bad_line_is_left_out_and_too_many_end_the_work(bed):
    good, count = lines(text[:50] for text in bed.texts * 5), len(bed.texts) * 5
    want = bed.bytes_of(bed.write("good.jsonl", good * 3))
    bad = bed.write("bad.jsonl", good + b'{"text": 5}\n' + good + b"{\n" + good + b'"text"\n')
    for threads in 1, 8:
        code, said = said_of(bed, "--threads", threads, bad)
        named = re.findall(r"bad\.jsonl, line (\d+): ", said)
        assert code == 0 and named == [str(count + 1), str(2 * count + 2), str(3 * count + 3)], said
        assert f"lines left out: 3 of {3 * count + 3}\n" in said, said
        with open(bed.path("out"), "rb") as file:
            assert file.read() == want
        os.remove(bed.path("out"))
    said = bed.make("--threads", 4, "--bad_line_share", 0, bad, want=78)
    assert f"bad.jsonl, line {count + 1}: \"text\" is not a string; 1 of " in said, said
    # eleven are too many of 3500, but not of 14000
    late, soon = (bed.write(name, content) for name, content in (
        ("late.jsonl", good * 4 + b"{}\n" * 11 + good), ("soon.jsonl", good + b"{}\n" * 11)))
    assert bed.bytes_of(late) == bed.bytes_of("--bad_line_share", 0.01, late)
    said = bed.make("--threads", 4, soon, want=78)
    assert f"line {count + 1}: there is no member \"text\"; 11 of {count + 11} lines" in said, said
    assert "11 lines were skipped" in bed.make("--skip_bad_lines", soon)
    os.remove(bed.path("out"))
    two = bed.write("two.jsonl", b"{}\n\n{}\n")
    assert "2 of 2 lines" in bed.make(two, want=78)
    assert bed.bytes_of("--skip_bad_lines", two, bed.path("good.jsonl")) == want


def members_that_were_not_asked_for_are_not_judged(bed):
    want = bed.bytes_of(bed.write("w.jsonl", lines(["one \ufffd", "\U0001f600 two"])))
    others = (b"NaN", b"[-Infinity, 1e999]", b"9" * 40, b'"\\udc00"', b'"\xff"', b'{"text": "no"}')
    for other in others:
        content = b"".join(b'{"x": %s, "text": %s, "\\ud800": 1}\n' % (other, text) for text in
                           (b'"one \\ud83d"', b'"\\ud83d\\ude00 two"'))
        code, said = said_of(bed, bed.write("o.jsonl", content))
        assert code == 0 and "left out" not in said, said
        assert "became U+FFFD: 1 (the first: " in said and "o.jsonl, line 1)" in said, said
        with open(bed.path("out"), "rb") as file:
            assert file.read() == want, other
        os.remove(bed.path("out"))
    for line in b'{"x": NaN, "text": "a"', b'{"x": NaN, "text": "\xff"}', b'{"text": NaN}':
        assert "o.jsonl, line 1: " in bed.make(bed.write("o.jsonl", line), want=78)


def objects_that_are_no_lines_are_documents(bed):
    texts = ['[{"\\', *(text[:400] for text in bed.texts * 4)]
    want = bed.bytes_of(bed.write("want.jsonl", lines(texts)))
    rows = [{"text": text, "x": [1, {"text": []}]} for text in texts]
    forms = {"array": json.dumps(rows), "indented": json.dumps(rows, indent=2) + "\r\n",
             "objects": "\ufeff" + "\n".join(json.dumps(row, indent=1) for row in rows),
             "joined": "".join(map(json.dumps, rows)), "lines": "\n".join(map(json.dumps, rows))}
    for name, content in forms.items():
        assert bed.bytes_of(bed.write(name + ".json", content.encode())) == want, name
    indented = forms["indented"]
    place = indented.index('"text": "', len(indented) // 2)
    bad = bed.write("bad.json", (indented[:place] + '"T' + indented[place + 2:]).encode())
    line = indented[:place].count("\n")  # of the brace
    code, said = said_of(bed, bad)
    assert code == 0 and f"bad.json, line {line}: there is no member \"text\"" in said, said
    os.remove(bed.path("out"))
    for content, what in ((indented[:-4], "the array does not end"),
                          (indented + "{", "does not end after the array"),
                          (forms["objects"][:-2], "the value that begins here does not end")):
        said = bed.make(bed.write("bad.json", content.encode()), want=78)
        assert re.search(rf"bad\.json, line \d+: .*{what}", said), said
    chat = bed.write("chat.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}\n' * 20)
    said = bed.make(chat, want=78)
    assert '"messages" holds a conversation' in said and "from-chat FILE" in said, said


def bad_input_is_named_and_leaves_no_file(bed):
    good = lines(bed.texts * 4)
    bad = bed.write("bad.jsonl", good)
    whole = gzip.compress(good)
    cut = bed.write("cut.jsonl.gz", whole[:len(whole) // 2])
    assert "cut.jsonl.gz" in bed.make(cut, want=78)
    assert "cut off" in bed.make(cut, want=78)
    assert "not a gzip" in bed.make(bed.write("no.txt.gz", b"plain"), want=78)
    assert ".jsonl" in bed.make(bed.path("e"), want=78) if os.makedirs(bed.path("e")) is None else 0
    assert "no/such" in bed.make("/no/such", want=78)
    assert "answer" in bed.make("--prompt_field", "q", bad, want=78)
    assert "no text" in bed.make(bed.write("void.txt", b""), want=78)


# ---- folders that training names ----

def trainer(bed, *options):
    environment = dict(os.environ, XDG_CACHE_HOME=bed.path("cache"))
    return subprocess.Popen(
        [os.path.join(os.path.dirname(TOKENIZER), "trainer"), "--job.run", "x", "--model.flavor",
         "tiny", "--model.hf_assets_path", bed.path("model"), "--training.seq_len", "32",
         "--training.local_batch_size", "1", "--canonical.micro_batches", "2", "--comm.ranks", "2",
         "--training.steps", "2", "--metrics.log_freq", "1", *map(str, options)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def ended(process):
    """Its exit code, and its output."""
    said = process.communicate(timeout=60)[0]
    return process.returncode, said


def trained(bed, *options):
    if os.path.exists(bed.path("loss")):
        os.remove(bed.path("loss"))  # it could be resumed
    code, said = ended(trainer(bed, *options, "--metrics.loss_file", bed.path("loss")))
    assert code == 0, said
    with open(bed.path("loss"), encoding="utf-8") as file:
        return said, file.read()


def cached(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def a_folder_is_tokenized_once_whoever_starts(bed):
    bed.write("g/a.jsonl", lines(bed.texts * 20))
    bed.make(bed.path("g"), out="g.tokens")
    want = trained(bed, "--training.dataset_path", bed.path("g.tokens"))[1]
    both = [trainer(bed, "--training.dataset", bed.path("g")) for _ in range(2)]
    both = [ended(process) for process in both]
    assert [code for code, _ in both] == [0, 0], both
    assert sum(said.count("making the tokens") for _, said in both) == 1, both
    again, losses = trained(bed, "--training.dataset_path", bed.path("g"))
    assert "making the tokens" not in again and losses == want, again
    assert len(cached(bed.path("g", ".holdfast"))) == 1


def a_run_says_which_lines_it_leaves_out(bed):
    bed.write("n/a.jsonl", lines(bed.texts[:99]) + b"{}\n")
    code, said = ended(
        trainer(bed, "--training.dataset", bed.path("n"), "--training.bad_line_share", 0))
    assert code == 78 and "a.jsonl, line 100: " in said, said
    said = trained(bed, "--training.dataset", bed.path("n"))[0]
    assert "a.jsonl, line 100: " in said and "lines left out: 1 of 100\n" in said, said


def a_step_without_a_token_that_counts_is_named_once(bed):
    bed.write("masked/a.jsonl", json.dumps({"q": bed.long[:50000], "a": "short"}).encode() + b"\n")
    said = trained(bed, "--training.dataset", bed.path("masked"),
                   "--training.dataset_prompt_field", "q", "--training.dataset_answer_field", "a",
                   "--training.steps", 5)[0]
    assert len(re.findall(r"step \d+ has no token to train on", said)) == 1, said


def a_folder_that_has_changed_is_tokenized_again(bed):
    bed.write("g/b.txt", bed.long[:5000].encode())
    assert "making the tokens" in trained(bed, "--training.dataset", bed.path("g"))[0]
    assert len(cached(bed.path("g", ".holdfast"))) == 2


def tokens_go_to_the_users_cache_where_the_folder_takes_none(bed):
    bed.write("h/a.txt", bed.long[:9000].encode())
    bed.write("h/.holdfast", b"a file where the cache would be")
    said = trained(bed, "--training.dataset", bed.path("h"), "--validation.enable",
                   "--validation.dataset", bed.path("h"))[0]
    assert said.count("making the tokens") == 1, said
    assert len([name for name in cached(bed.path("cache", "holdfast"))
                if name.endswith(".tokens")]) == 1


def tokenizing_that_is_stopped_ends_soon_and_is_done_again(bed):
    for name in "ab":
        bed.write(f"k/{name}.txt", bed.long.encode() * 3)
    cache = bed.path("k", ".holdfast")
    for number in signal.SIGTERM, signal.SIGKILL:
        # the ranks are threads: one makes the tokens, the other waits for it
        process = trainer(bed, "--training.dataset", bed.path("k"))
        while not (os.path.isdir(cache) and any(".tmp" in name for name in os.listdir(cache))):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.001)
        began = time.monotonic()
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        assert process.returncode == (75 if number == signal.SIGTERM else -number), said
        assert time.monotonic() - began < 3 * SCALE, said
    left = [name for name in os.listdir(cache) if ".tmp" in name]
    assert len(left) == 1, left  # of the one that was killed
    assert "making the tokens" in trained(bed, "--training.dataset", bed.path("k"))[0]
    assert [name[-7:] for name in os.listdir(cache)] == [".tokens"], os.listdir(cache)


def a_mixture_takes_folders_and_files(bed):
    bed.write("i/a.txt", bed.long[9000:30000].encode())
    said = trained(bed, "--training.mixture", f"{bed.path('i')}/:0.75,{bed.path('g.tokens')}:0.25",
                   "--training.steps", 4)
    assert said[0].count("making the tokens") == 1 and " i: " in said[0], said
    means = [field.split("=")[0] for field in said[1].split() if "=" in field]
    assert set(means) == {"loss.i", "loss.g"}, said


def a_model_that_does_not_fit_is_refused_before_its_corpus_is_tokenized(bed):
    bed.write("j/a.txt", bed.long[:5000].encode())
    code, said = ended(trainer(bed, "--training.dataset", bed.path("j"), "--model.flavor", "405B",
                               "--training.steps", 3))
    assert code == 78 and "GiB of memory" in said, said
    assert "making the tokens" not in said and not os.path.exists(bed.path("j", ".holdfast")), said


def a_usual_name_says_where_its_files_go(bed):
    code, said = ended(trainer(bed, "--training.dataset", "c4"))
    assert code != 0 and bed.path("cache", "holdfast", "c4") in said, said
    code, said = ended(trainer(bed, "--training.dataset", bed.path("g"), "--validation.enable",
                               "--validation.dataset", "c4_validation"))
    assert code != 0 and "validation.dataset = \"c4_validation\"" in said, said
    bed.write("cache/holdfast/c4/c4-train.00000-of-01024.json.gz", gzip.compress(lines(bed.texts)))
    assert "making the tokens" in trained(bed, "--training.dataset", "c4")[0]
    code, said = ended(trainer(bed, "--training.dataset", "c5"))
    assert "c5" in said and code != 0


if __name__ == "__main__":
    one_bed = Bed()
    try:
        good_end = lib_tap.run(lib_tap.tests_of_script(), one_bed)
    finally:
        shutil.rmtree(one_bed.root, ignore_errors=True)
    sys.exit(not good_end)
