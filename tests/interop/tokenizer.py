#!/usr/bin/env python3
"""tokenizer - the tokenizer exported with a model makes our tokens in transformers.

Goal: AutoTokenizer, from the folder of an export alone, makes our tokens of 1 MB of real text and
of random Unicode, puts the special token where our trainer has it, and gives the text back; so does
the output of save_pretrained; from-chat renders conversations as apply_chat_template does. Method:
a tokenizer is trained on that text and exported with a model that was never trained.
"""
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
from lib_hf import TextBed, main, need, test  # noqa: E402
import lib_text  # noqa: E402

need("transformers", "tokenizers")
import transformers  # noqa: E402

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../clients/python/src")
BEGIN, END = TextBed.vocab - 2, TextBed.vocab - 1


def load(bed, folder="out"):
    return transformers.AutoTokenizer.from_pretrained(bed.path(folder))


def compare(theirs, bed, text):
    text = text.replace("<|", "<!")  # special tokens there are only text to us
    ours, got = bed.tokens(text), theirs(text, add_special_tokens=False).input_ids
    assert ours == got, lib_text.first_difference(ours, got, "transformers")
    assert theirs.decode(got) == text


@test
def a_megabyte_of_real_text_gives_the_same_tokens(bed):
    compare(load(bed), bed, bed.text().decode())


@test
def random_unicode_gives_the_same_tokens(bed):
    compare(load(bed), bed, lib_text.random_text(200000))


@test
def a_text_begins_with_the_special_token_and_both_are_known(bed):
    theirs = load(bed)
    assert len(theirs) == TextBed.vocab
    assert (theirs.bos_token_id, theirs.eos_token_id) == (BEGIN, END)
    assert theirs("some text").input_ids == [BEGIN] + bed.tokens("some text")
    assert theirs.decode([BEGIN, *bed.tokens("it is , so"), END],
                         skip_special_tokens=True) == "it is , so"


@test
def what_transformers_saves_makes_the_same_tokens(bed):
    load(bed).save_pretrained(bed.path("saved"))
    compare(load(bed, "saved"), bed, bed.text().decode()[:100000])


# Features that the templates of published models use: blocks whose line breaks are trimmed,
# namespaces, macros, loop controls, tools as JSON, the date, the marks of an answer.
CHATS = {
    "tools": """{%- if tools %}
    {{- "<tools>" }}
    {%- for tool in tools %}
        {{- "\n" + (tool | tojson(indent=2)) }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}{% continue %}{% endif %}
    {{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant" }}{% endif %}
""",
    "macros": """{{ bos_token }}{% macro turn(m) %}
[{{ m["role"] | upper }}] {{ m["content"] | trim }}
{% endmacro %}
{% set state = namespace(count=0) %}
  {% for m in messages %}
    {% set state.count = state.count + 1 %}
{{ turn(m) }}
    {% if m["role"] == "assistant" %}{% generation %}{{ loop.index0 }}{% endgeneration %}{% endif %}
  {% endfor %}
{{ state.count }} {{ strftime_now("%d %b %Y") | length }} {{ "<&>" | tojson }}{{ eos_token }}"""}
ROWS = [{"messages": [{"role": "system", "content": " \u00fc\n"},
                      {"role": "user", "content": "<a> & b"}, {"role": "assistant", "content": "c"},
                      {"role": "tool", "content": "d"}, {"role": "user", "content": "e"}]},
        {"messages": [{"role": "user", "content": "f"}], "tools": [{
            "type": "function", "function": {"name": "\u00fc", "parameters": {"b": 1, "a": 0}}}]}]


@test
def a_chat_template_gives_the_text_of_transformers(bed):
    """But for the tokens around a document, which our trainer writes by itself."""
    theirs = load(bed)
    for name, template in CHATS.items():
        theirs.chat_template = template
        theirs.save_pretrained(bed.path(name))
        with open(bed.path(name + ".jsonl"), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in ROWS)
        subprocess.run([sys.executable, "-m", "holdfast", "from-chat", bed.path(name + ".jsonl"),
                        bed.path(name + ".out"), "--model", bed.path(name)], check=True,
                       env=dict(os.environ, PYTHONPATH=PACKAGE), stdout=subprocess.DEVNULL)
        with open(bed.path(name + ".out")) as file:
            ours = [json.loads(line)["text"] for line in file]
        want = [theirs.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=False)
                for row in ROWS]
        assert ours == [text.removeprefix(theirs.bos_token).removesuffix(theirs.eos_token)
                        for text in want], (name, ours, want)
        assert (ours[0] != want[0]) == (name == "macros")


if __name__ == "__main__":
    main(TextBed.export_seed, TextBed)
