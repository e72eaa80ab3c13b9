"""Bad input to every verb: exit code 2, one message that names it, and everything as it was.

Also what good input looks like: nothing on standard error, and examples in the help that hold.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pickle
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest

from partita import load
from partita.commands import VERBS, main, module_of

UNKNOWN = "is not in the tokenizer's alphabet; leave it out; a model trained with bytes or bpe"
GREEK = f"the character 'Ω' {UNKNOWN}"
NEWLINE = (
    "data.documents: 'paragraph' ends documents with line breaks, which text8 does not have; "
    "give --data.documents file"
)
LONGER = (
    "network.length: 40 of 40 documents have more than 8 tokens, the longest 32; give "
    "--network.length 32, shorter documents (--data.documents line), or --data.longer cut or skip"
)
NO_MODEL = (
    "this installation comes without a model; name one: a run folder, an exported model or a hub id"
)
KNOWN = (
    "name a run folder, a model folder or hf:OWNER/NAME on the hub, or default for the model that "
    "this installation comes with"
)
LONG = "n" * 240  # characters; there is no room for what is added to it while it is written
BINARY = "is a binary file: it has a zero at byte 0; give text"
LATIN = "is not UTF-8 near byte 1 (0xe4); convert it"
NO_DECODER = "has no such choice; it takes: "
SIZES = "--network.width 16 --network.depth 1 --network.heads 2 --network.length 8"
PACE = "--training.steps 3 --training.batch_size 4 --run.previews 0"
TRAIN = f"train notes.txt {SIZES} {PACE}"
NOTES = "\n\n".join(f"note {n} is short and says little" for n in range(40))
FILES = {
    "notes.txt": NOTES.encode(),
    "empty.txt": b"",
    "blank.txt": b"\n\n\n",
    "short.txt": b"abc",
    "binary.txt": bytes(range(256)),
    "latin.txt": "nächte".encode("latin-1"),
    "greek.txt": "Ω and ω".encode(),
    "rows.jsonl": b'{"body": "a text"}\n',
    "broken.jsonl": b'{"text": "a te',
    "weights.pt": pickle.dumps({"weights": [1.0]}),
    "list.yaml": b"- network\n- training\n",
    "empty.yaml": b"",
    "number.yaml": b"17\n",
    "broken.yaml": b"network: [\n",
    "tab.yaml": b"network:\n\twidth: 16\n",
    "binary.yaml": b"\xff\xfe\x00\x01",
    "loop.yaml": b"network: &a {width: *a}\n",
    "key.yaml": b"network: {widht: 16}\n",
    "section.yaml": b"netwrk: {width: 16}\n",
    "spaced.yaml": b"net work: {width: 16}\n",
    "pointed.yaml": b"data: {field:`0.1}\n",
    "tabbed.yaml": b"traini\tng:\n  steps: 20\n",
    "words.yaml": b"training: many steps\n",
    "huge.yaml": b"network: {dropout: %s}\n" % (b"9" * 400),
    "flat.yaml": b"network: 16\n",
    "null.yaml": b"network:\n",
    "numbered.yaml": b"network: {16: 16}\n",
    "type.yaml": b"training: {max_grad_norm: soft}\n",
    "nan.yaml": b"training: {max_grad_norm: .nan}\n",
    "range.yaml": b"training: {max_grad_norm: -3}\n",
    "decoder.yaml": b"network: {decoder: 3}\n",
    "endless.yaml": b"training: {seconds: .inf}\n",
}


def run(words):
    """A verb in this process."""
    return main(shlex.split(words))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Files of every bad kind, and small models: masked, of characters, of other methods."""
    folder = tmp_path_factory.mktemp("place")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name, content in FILES.items():
            Path(name).write_bytes(content)
        Path("hollow").mkdir()
        kinds = {"mdlm": "", "chars": "--tokenizer.name characters"}
        kinds |= {name: f"--method.name {name}" for name in ("ar", "genmd4", "sedd")}
        kinds["flex"] = "--method.name flexmdm --data.longer cut"
        for name, more in kinds.items():
            assert run(f"{TRAIN} --out {name} {more}") == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def here(place, monkeypatch):
    """The place as the working folder; no name is looked up elsewhere, no model is shipped."""
    monkeypatch.chdir(place)
    monkeypatch.setattr("partita.models.default.WEIGHTS", place / "no-weights")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return place


@pytest.fixture
def copy(place, tmp_path, monkeypatch):
    """A place of one's own, to leave changed."""
    folder = tmp_path / "copy"
    shutil.copytree(place, folder)
    monkeypatch.chdir(folder)
    return folder


def listing(folder):
    """Everything in a folder, hidden files too, with what it holds."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def check(code, err, message):
    """One message that begins like this."""
    assert (code, err[: len(f"partita: {message}")]) == (2, f"partita: {message}"), err
    assert err.endswith("\n")
    assert err.count("\n") == 1, err


# verb -> words after it -> how the message begins
TABLE: dict[str, dict[str, str]] = {
    "demo": {
        "--seconds 0": "--seconds: must be a positive, finite number, got 0",
        "--seconds -1": "--seconds: must be a positive, finite number, got -1",
        "--seconds .inf": "--seconds: must be a positive, finite number, got inf",
        "--seconds nan": "--seconds: must be a number, got 'nan'",
        "--seconds soon": "--seconds: must be a number, got 'soon'",
        "--seconds": "--seconds: needs a value; partita demo --help",
        "--secnds 3": "--secnds: unknown option; did you mean --seconds?",
        "--seed -1": "--seed: must be at least 0, got -1",
        "--seed 1.5": "--seed: must be a whole number, got '1.5'",
        "--seed 99999999999999999999": "--seed: must be at most 18446744073709551615",
        "--infill 'no blank'": "--infill: has no blank; write one as ____",
        "--infill __0__": "--infill: the blank '__0__' is empty; give it a size",
        "--infill __99999999999__": "--infill: the blank '__99999999999__' is too long; give",
        "--infill __88__": "--infill: has 88 tokens, the model takes 48; shorten it",
        "--blank_tokens 0": "--blank_tokens: must be at least 1, got 0",
        "--blank_tokens 99999999999": "--blank_tokens: must be at most ",
        "notes.txt": "'notes.txt': is one word too many; partita demo --help",
    },
    "prepare": {
        "": "corpus: no text is given; name a file",
        "nowhere.txt": "data.path: nowhere.txt does not exist; check the name",
        "empty.txt": "data.path: empty.txt holds no text; name another",
        "blank.txt": "data.path: blank.txt holds no text; name another",
        "binary.txt": f"data.path: binary.txt {BINARY}",
        "latin.txt": f"data.path: latin.txt {LATIN}",
        "hollow": "data.path: the folder hollow holds no files; name another",
        "weights.pt": "data.path: weights.pt is a binary file: it has a zero at byte 4; give text",
        "broken.jsonl": "data.path: broken.jsonl line 1 is not JSON: ",
        "rows.jsonl": "data.field: rows.jsonl line 1 has no text under 'text'; it has: body",
        "hf:": "data.path: 'hf:' names no data set; give hf:NAME",
        "notes.txt --data.validation_fraction 1": (
            "data.validation_fraction: is a share of the tokens, got 1.0; give"
        ),
        "notes.txt --data.validation_fraction -0.1": (
            "data.validation_fraction: is a share of the tokens, got -0.1; give"
        ),
        "notes.txt --data.validation_fraction .nan": (
            "data.validation_fraction: is a share of the tokens, got nan; give"
        ),
        "notes.txt --data.validation_fraction most": (
            "data.validation_fraction: must be a number, got 'most'"
        ),
        "notes.txt --data.rows loose": "data.rows: unknown name 'loose'; known: packed, padded",
        "notes.txt --data.documents page": "data.documents: unknown name 'page'; known: ",
        "notes.txt --data.document_attention maybe": (
            "--data.document_attention: must be true or false, got 'maybe'"
        ),
        "notes.txt --data.cache notes.txt/cache": (
            "data.cache: notes.txt is no folder, so notes.txt/cache cannot be made; choose another"
        ),
        "notes.txt --data.cache notes.txt": "data.cache: notes.txt is no folder; choose another",
        "notes.txt --data.cache ''": "data.cache: is empty; name a folder",
        "notes.txt --tokenizer.name gpt9": "tokenizer.name: unknown name 'gpt9'; known: bpe, ",
        "notes.txt --tokenizer.name nobody/nothing": (
            "tokenizer.name: 'nobody/nothing' is no file here, and as a name on the hub: "
        ),
        "notes.txt --tokenizer.name notes.txt": "tokenizer.name: notes.txt: this is no tokenizer",
        "notes.txt --tokenizer.name text8 --data.cache new/cache": NEWLINE,
        "notes.txt --tokenizer.vocab_size 9": "tokenizer.vocab_size: must be at least 256, got 9",
        "notes.txt --tokenizer.vocab_size 9e9": "tokenizer.vocab_size: must be a whole number, ",
        "notes.txt --tokenizer.vocab_size 99999999999": "tokenizer.vocab_size: must be at most ",
        "notes.txt --tokenizer.nme bpe": "--tokenizer.nme: unknown option; did you mean --token",
        "notes.txt --tokenizer bpe": "--tokenizer: is a section with keys of its own; write --tok",
        "notes.txt empty.txt": "'empty.txt': is one word too many; partita prepare --help",
        "binary.txt --data.cache new/cache": f"data.path: binary.txt {BINARY}",
    },
    "sample": {
        "": f"model: {NO_MODEL}",
        "--count 2": f"model: {NO_MODEL}",
        "default": f"model: {NO_MODEL}",
        "mdlm --precision half": "--precision: unknown name 'half'; known: bfloat16, float32",
        "mdlm --counts cosine": "--counts: unknown option; for the samplers confidence, ",
        "mdlm --speed plain": "--speed: 'plain' has another name now; write eager",
        "mdlm --speed warp": "--speed: unknown name 'warp'; known: auto, eager, cudagraph",
        "nowhere": "model: nowhere does not exist",
        "nobody/nothing": "model: nobody/nothing is no folder here, and the hub does not give it",
        "notes.txt": "model: notes.txt is no folder of safetensors and JSON; pickled",
        "weights.pt": "model: weights.pt is no folder of safetensors and JSON; pickled",
        "hollow": "model: hollow holds neither a model",
        "mdlm ar": "'ar': is one word too many; partita sample --help",
        "mdlm --cont 3": "--cont: unknown option; did you mean --count?",
        "mdlm --count 0": "--count: must be at least 1, got 0",
        "mdlm --count -1": "--count: must be at least 1, got -1",
        "mdlm --count few": "--count: must be a whole number, got 'few'",
        "mdlm --count 99999999999999999999": "--count: must be at most ",
        "mdlm --seed -1": "--seed: must be at least 0, got -1",
        "mdlm --seed 99999999999999999999": "--seed: must be at most ",
        "mdlm --device tpu": "--device: unknown name 'tpu'; known: auto, cpu, cuda",
        "mdlm --device meta": "--device: unknown name 'meta'; known: auto, cpu, cuda",
        "mdlm --device cuda:99": "--device: there is no ",
        "mdlm --sampler gibbs": "--sampler: unknown name 'gibbs'; known: analytic, ancestral, ",
        "mdlm --sampler autoregressive": "--sampler: 'autoregressive' does not fit a masked model",
        "ar --sampler ancestral": "--sampler: 'ancestral' does not fit a causal model; these do: ",
        "mdlm --steps 0": "--steps: must be at least 1, got 0",
        "mdlm --steps 99999999999999999999": "--steps: must be at most ",
        "mdlm --steps some": "--steps: must be a whole number, got 'some'",
        "mdlm --sampler first-hitting --steps 3": "--steps: is not an option of sampler 'first-",
        "mdlm --temperature -1": "--temperature: must be at least 0, got -1",
        "mdlm --temperature .nan": "--temperature: must be at least 0, got nan",
        "mdlm --temperature .inf": "--temperature: must be 0, or from 1e-30 to 1e+30, got inf",
        "mdlm --temperature 1e-310": "--temperature: must be 0, or from 1e-30 to 1e+30, got 1e-310",
        "mdlm --temperature 1e-320": "--temperature: must be 0, or from 1e-30 to 1e+30, got 1e-320",
        "mdlm --temperature hot": "--temperature: must be a number, got 'hot'",
        "mdlm --top_k 0": "--top_k: must be at least 1, got 0",
        "mdlm --top_p 0": "--top_p: must be in (0, 1], got 0",
        "mdlm --top_p 2": "--top_p: must be in (0, 1], got 2",
        "mdlm --length 0": "--length: must be at least 1, got 0",
        "mdlm --length 9": "--length: 9 positions are more than the model's 8; shorten it, or use",
        "ar --length 9": "--length: 9 positions are more than the model's 8; shorten it",
        "mdlm --prompt 'longer than eight'": "--prompt: has 17 tokens, which leaves nothing of 8",
        "mdlm --prompt abc --length 20": "--prompt: 20 positions are more than the model's 8; sh",
        "chars --prompt Ω": f"--prompt: {GREEK}",
        "mdlm --options.stps 3": "--options.stps: is not an option of sampler 'ancestral'; it tak",
        "mdlm --options 3": "--options: must be keys and values, such as ",
        "mdlm --options.count 3": "--options.count: is no option of a sampler",
        "mdlm --options.grid log": "--options.grid: unknown name 'log'; known: cosine, uniform",
        "mdlm --options.schedule square": "--options.schedule: unknown name 'square'; ",
        "mdlm --options.label 1": "--options.label: the model knows no classes; leave it out",
        "mdlm --sampler confidence --options.counts x": "--options.counts: unknown name 'x'; known",
        "mdlm --sampler ordered --options.order x": "--options.order: unknown name 'x'; known: ",
        "mdlm --sampler blocks --options.inner x": "--options.inner: 'x' cannot fill a block; kn",
        "mdlm --sampler blocks --options.block_length 9": (
            "--options.block_length: must lie between 1 and the model's length 8, got 9"
        ),
        "mdlm --count 99999999999999": "memory: there is not enough for what was asked; ask for",
        "mdlm --sampler insertion": "--sampler: 'insertion' does not fit a masked model; these do",
        "flex --sampler ancestral": "--sampler: 'ancestral' does not fit a flexible model; these ",
        "flex --length 0": "--length: must be at least 1, got 0",
        "flex --length 9": "--length: 9 positions are more than the model's 8; shorten it",
        "flex --prompt abc --length 9": "--length: 9 positions are more than the model's 8; short",
        "flex --prompt abc --length 3": "--prompt: has 3 tokens, which leaves nothing of 3 to wri",
        "flex --prompt 'longer than eight'": "--prompt: has 17 tokens, which leaves nothing of 8",
        "flex --steps 0": "--steps: must be at least 1, got 0",
        "flex --options.rule x": "--options.rule: unknown name 'x'; known: euler, schedule, tau-",
        "flex --options.window 2": "--options.window: lets masks compete, but nothing is compared",
        "flex --options.confidence x": "--options.confidence: unknown name 'x'; known: entropy, ",
        "flex --options.flexible true": "--options.flexible: is no option of a sampler",
    },
    "infill": {
        "": "text: must be given; partita infill --help",
        "mdlm": "text: has no blank; write one as ____; a model comes before the text",
        "--count 2 'a ____'": f"model: {NO_MODEL}",
        "'a ____'": f"model: {NO_MODEL}",
        "default 'a ____'": f"model: {NO_MODEL}",
        "default --count 2 'a ____'": f"model: {NO_MODEL}",
        "mdlm 'a ____' more": "'more': is one word too many; partita infill --help",
        "mdlm --count 2 'no blank'": "text: has no blank; write one as ____",
        "nowhere 'a ____'": "model: nowhere does not exist",
        "hollow 'a ____'": "model: hollow holds neither a model",
        "notes.txt 'a ____'": "model: notes.txt is no folder of safetensors and JSON; pickled",
        "weights.pt 'a ____'": "model: weights.pt is no folder of safetensors and JSON; pickled",
        "mdlm ''": "text: has no blank; write one as ____",
        "mdlm 'no _ blank'": "text: has no blank; write one as ____",
        "mdlm 'a __0__'": "text: the blank '__0__' is empty; give it a size of 1 or more",
        "mdlm 'a __99__'": "text: 101 positions are more than the model's 8; shorten it, or use",
        "mdlm 'a __99999999999__'": "text: the blank '__99999999999__' is too long; give it a sm",
        f"mdlm 'a __{'9' * 5000}__'": "text: the blank '__99",
        "mdlm 'a ____ and much more'": "text: 20 positions are more than the model's 8; shorten",
        "mdlm 'a ____' --blank_tokens 0": "--blank_tokens: must be at least 1, got 0",
        "mdlm 'a ____' --blank_tokens 9": "text: 11 positions are more than the model's 8; shor",
        "mdlm 'a ____' --blank_tokens x": "--blank_tokens: must be a whole number, got",
        "chars 'Ω ____'": f"text: {GREEK}",
        "ar 'a ____ b'": "text: an autoregressive model can only continue a prefix",
        "ar 'a ____ b' --sampler ancestral": "--sampler: 'ancestral' does not fit a causal model",
        "mdlm 'a ____' --sampler gibbs": "--sampler: unknown name 'gibbs'; known: ",
        "mdlm 'a ____' --steps 0": "--steps: must be at least 1, got 0",
        "mdlm 'a ____' --count 0": "--count: must be at least 1, got 0",
        "mdlm 'a ____' --length 3": "--length: blanks of given sizes leave nothing to say about ",
        "flex 'a ____' --flexible --length 0": "--length: must be at least 1, got 0",
        "mdlm 'a ____' --temperature -1": "--temperature: must be at least 0, got -1",
        "mdlm 'a ____' --temperature 1e-320": "--temperature: must be 0, or from 1e-30 to ",
        "mdlm 'a ____' --options.stps 3": "--options.stps: is not an option of sampler 'ancestr",
        "mdlm 'a ____' --options.text 3": "--options.text: is no option of a sampler",
        "mdlm 'a ____' --device tpu": "--device: unknown name 'tpu'; known: auto, cpu, cuda",
        "mdlm 'a ____' --flexible": (
            "--flexible: mdlm cannot tell how many tokens a blank takes; leave it out, or train a "
            "model that can with --method.name flexmdm"
        ),
        "mdlm 'a ____' --flexible maybe": "--flexible: must be true or false, got 'maybe'",
        "ar 'a ____' --flexible": "--flexible: ar cannot tell how many tokens a blank takes; leav",
        "flex 'a ____' --flexible --blank_tokens 3": "--blank_tokens: flexible blanks have no size",
        "flex 'no blank' --flexible": "text: has no blank; write one as ____",
        "flex 'a __0__' --flexible": "text: the blank '__0__' is empty; give it a size of 1 or mo",
        "flex 'a __9__' --flexible": "text: has 11 tokens, but the text may have 8 at most; short",
        "flex 'a ____ and much more' --flexible": "text: has 16 tokens, but the text may have 8 at",
        "flex 'a __9__'": "text: has 11 tokens, but the text may have 8 at most; shorten it",
        "flex 'a ____' --sampler blocks": "--sampler: 'blocks' does not fit a flexible model; the",
    },
    "score": {
        "": "model, texts: must be given; partita score --help",
        "mdlm": "texts: there are none beside 'mdlm', which is taken for the model; give some",
        "default a": f"model: {NO_MODEL}",
        "mdlm ''": "texts: one of them is empty; leave it out",
        "mdlm a '' b": "texts: one of them is empty; leave it out",
        "nowhere a": "model: nowhere does not exist",
        "hollow a": "model: hollow holds neither a model",
        "notes.txt a": "model: notes.txt is no folder of safetensors and JSON; pickled",
        "weights.pt a": "model: weights.pt is no folder of safetensors and JSON; pickled",
        "mdlm --file nowhere.txt": "--file: nowhere.txt does not exist; name a text file",
        "mdlm --file empty.txt": "--file: empty.txt holds no text; write",
        "mdlm --file blank.txt": "--file: blank.txt holds no text; write",
        "mdlm --file binary.txt": "--file: binary.txt is not UTF-8 text; convert it first",
        "mdlm --file latin.txt": "--file: latin.txt is not UTF-8 text; convert it first",
        "mdlm --file hollow": "--file: hollow cannot be read: Is a directory",
        "mdlm a --file notes.txt": "--file: texts are given as arguments too; give one of the two",
        "mdlm --fil notes.txt": "--fil: unknown option; did you mean --file?",
        "chars Ω": f"texts: {GREEK}",
        "chars --file greek.txt": f"--file: {GREEK}",
        "mdlm a --replicates 1": "--replicates: must be at least 2, got 1",
        "mdlm a --replicates some": "--replicates: must be a whole number, got 'some'",
        "mdlm a --seed -1": "--seed: must be at least 0, got -1",
        "mdlm a --seed 99999999999999999999": "--seed: must be at most ",
        "mdlm a --device tpu": "--device: unknown name 'tpu'; known: auto, cpu, cuda",
        "flex 'longer than eight'": "texts: has 17 tokens, more than the model's 8; shorten it: p",
        "flex --file notes.txt": "--file: text 1: has 31 tokens, more than the model's 8; short",
        "flex": "texts: there are none beside 'flex', which is taken for the model; give",
    },
    "eval": {
        "ar notes.txt --profile p.png": "--profile: there is none of AR; it is for mdlm, mdlm-com",
        "mdlm --profile p.png": "--profile: there is no likelihood without a file; give a file",
        "ar notes.txt --order random": "--order: AR does not reveal tokens in an order; it is for",
        "mdlm --order random": "--order: there is no likelihood without a file; give a file",
        "mdlm notes.txt --order up": "--order: unknown name 'up'; known: left-to-right, random",
        "mdlm notes.txt --profile p.jpg": "--profile: p.jpg would hold a PNG, and its name says",
        "": "model: must be given; partita eval --help",
        "default": f"model: {NO_MODEL}",
        "default notes.txt": f"model: {NO_MODEL}",
        "mdlm --judge default": f"--judge: {NO_MODEL}",
        "nowhere": "model: nowhere does not exist",
        "hollow": "model: hollow holds neither a model",
        "notes.txt": "model: notes.txt is no folder of safetensors and JSON; pickled",
        "weights.pt": "model: weights.pt is no folder of safetensors and JSON; pickled",
        "mdlm --samples 0": "file: there is nothing to evaluate; give a file, or --samples",
        "mdlm notes.txt --samples 0 --steps 0": "--steps: must be at least 1, got 0",
        "mdlm --samples 2 --sampler bogus": "--sampler: unknown name 'bogus'; known: an",
        "mdlm --samples 2 --temperature -1": "--temperature: must be at least 0, got -1.0",
        "mdlm --samples 2 --temperature 1e-320": "--temperature: must be 0, or from 1e-30 to ",
        "mdlm --samples 2 --options.order x": "--options.order: is not an option of sampler",
        "mdlm --samples -1": "--samples: must be at least 0, got -1",
        "mdlm --samples 99999999999999999999": "--samples: must be at most ",
        "mdlm --smples 3": "--smples: unknown option; did you mean --samples?",
        "mdlm nowhere.txt": "file: nowhere.txt does not exist; check the name",
        "mdlm empty.txt": "file: empty.txt holds no text",
        "mdlm blank.txt": "file: blank.txt holds no text",
        "mdlm binary.txt": f"file: binary.txt {BINARY}",
        "mdlm latin.txt": f"file: latin.txt {LATIN} first",
        "mdlm hollow": "file: the folder hollow holds no files; name another",
        "mdlm rows.jsonl": "file: rows.jsonl line 1 has no text under 'text'; it has: body",
        "chars greek.txt": f"file: {GREEK}",
        "mdlm notes.txt --replicates 1": "--replicates: must be at least 2, got 1",
        "mdlm notes.txt --limit 0": "--limit: must be at least 1, got 0",
        "mdlm notes.txt --seed -1": "--seed: must be at least 0, got -1",
        "mdlm notes.txt --seed 99999999999999999999": "--seed: must be at most ",
        "mdlm notes.txt --device tpu": "--device: unknown name 'tpu'; known: auto, cpu, cuda",
        "mdlm --judge mdlm": "--judge: mdlm is no autoregressive model; train one with --method",
        "mdlm --judge nowhere": "--judge: nowhere does not exist",
        "mdlm --judge hollow": "--judge: hollow holds neither a model",
        "mdlm --judge weights.pt": "--judge: weights.pt is no folder of safetensors and JSON; pi",
        "mdlm notes.txt --samples 0 --judge ar": "--judge: there are no samples to look at; give",
        "mdlm --words nowhere.txt": "--words: nowhere.txt does not exist; check the name",
        "mdlm --words empty.txt": "--words: empty.txt holds no words; name another",
        "mdlm --words binary.txt": f"--words: binary.txt {BINARY}",
        "mdlm --words hollow": "--words: the folder hollow holds no files; name another",
        "mdlm --out notes.txt/x.json": "--out: notes.txt is no folder; choose another place",
        "mdlm --out notes.txt/x/y.json": "--out: notes.txt is no folder, so notes.txt/x cannot be",
        "mdlm --out hollow": "--out: hollow is a folder; name a file",
        f"mdlm --out {LONG}": f"--out: {LONG} is too long a name; choose a shorter one",
        "mdlm --out ''": "--out: . is a folder; name a file",
        "mdlm notes.txt more": "'more': is one word too many; partita eval --help",
        "mdlm --limit 9 notes.txt": "'notes.txt': is one word too many, or is parted from the",
        "flex notes.txt": "file: 40 of 40 documents of notes.txt have more than the model's 8 tok",
        "flex empty.txt": "file: empty.txt holds no text",
        # Results that never come: no folder is made for them, and those of before stay.
        "chars greek.txt --out new/results.json": f"file: {GREEK}",
        "chars greek.txt --out list.yaml": f"file: {GREEK}",
    },
    "distill": {
        "": "--teacher: must be given; partita distill --help",
        "--teacher": "--teacher: needs a value; partita distill --help",
        "--teacher nowhere": "--teacher: nowhere does not exist",
        "--teacher default": f"--teacher: {NO_MODEL}",
        "--teacher hollow": "--teacher: hollow holds neither a model",
        "--teacher weights.pt": "--teacher: weights.pt is no folder of safetensors and JSON; pick",
        "--teacher mdlm --rounds 0": "--rounds: must be at least 1, got 0",
        "--teacher mdlm --rounds x": "--rounds: must be a whole number, got 'x'",
        "--teacher mdlm --rounds 65": "--rounds: must be at most 64, got 65",
        "--teacher mdlm --rounds 8": "distillation.steps: after round 8 no step is left of 128; ",
        "--teacher mdlm --distillation.steps 0": "distillation.steps: must be at least 1, got 0",
        "--teacher mdlm --distillation.steps 9": "distillation.steps: 9 cannot be divided by 2 in ",
        "--teacher mdlm --distillation.substeps 1": "distillation.substeps: must be at least 2, g",
        "--teacher mdlm --distillation.divergence kl": (
            "distillation.divergence: unknown name 'kl'; known: forward-kl, log-mse, mse, reverse"
        ),
        "--teacher mdlm --distillation.round 2": "--distillation.round: unknown option; did you ",
        "--teacher mdlm --network.width 8": "--network.width: unknown option; ",
        "--teacher mdlm --training.steps 0": "training.steps: must be at least 1, got 0",
        "--teacher mdlm --out notes.txt": "--out: notes.txt is no folder, so notes.txt/round-1 can",
        "--teacher mdlm --out mdlm": "--out: mdlm holds a run of its own; choose another folder",
        "--teacher mdlm --out ''": "--out: is empty; name a folder, or leave it out",
        "--teacher mdlm --config nowhere.yaml": "--config: nowhere.yaml does not exist; name a YAM",
        "--teacher mdlm --run.device tpu": "run.device: unknown name 'tpu'; known: auto, cpu, cuda",
        "nowhere.txt --teacher mdlm": "text: nowhere.txt does not exist; check the name",
        "--teacher ar": "--teacher: AR is no masked model of texts of given",
        "--teacher flex": "--teacher: FlexMDM is no masked model of texts of given",
    },
    "accuracy": {
        "": "model, file, task: must be given; partita accuracy --help",
        "mdlm notes.txt": "--task: must be given; partita accuracy --help",
        "mdlm notes.txt --task guess": "--task: unknown name 'guess'; known: last-word, choices, ",
        "nowhere notes.txt --task infill": "model: nowhere does not exist",
        "hollow notes.txt --task infill": "model: hollow holds neither a model",
        "notes.txt notes.txt --task infill": "model: notes.txt is no folder of safetensors and JS",
        "flex notes.txt --task infill": "model: FlexMDM predicts no tokens at given places with t",
        "sedd notes.txt --task infill": "model: SEDD predicts no tokens at given places with the ",
        "genmd4 notes.txt --task infill": "model: GenMD4 predicts no tokens at given places with",
        "mdlm nowhere.txt --task infill": "file: nowhere.txt does not exist; check the name",
        "mdlm nowhere.txt --task last-word": "file: nowhere.txt does not exist; check the name",
        "mdlm nowhere.txt --task choices": "file: nowhere.txt does not exist; check the name",
        "mdlm hollow --task infill": "file: the folder hollow holds no files; name another",
        "mdlm hollow --task choices": "file: hollow is no file; name a JSONL file",
        "mdlm empty.txt --task infill": "file: empty.txt has no word with 8 tokens around it; giv",
        "mdlm empty.txt --task last-word": "file: holds 0 texts, and a standard error needs two",
        "mdlm empty.txt --task choices": "file: holds 0 questions, and a standard error needs two",
        "mdlm binary.txt --task infill": f"file: binary.txt {BINARY}",
        "mdlm latin.txt --task last-word": f"file: latin.txt {LATIN}",
        "mdlm notes.txt --task choices": "file: notes.txt line 1 is not JSON: ",
        "mdlm broken.jsonl --task choices": "file: broken.jsonl line 1 is not JSON: ",
        "mdlm rows.jsonl --task choices": "file: rows.jsonl line 1 is no question; write {",
        "mdlm rows.jsonl --task last-word": "file: rows.jsonl line 1 has no text under 'text'; it",
        "chars greek.txt --task last-word": f"file: {GREEK}",
        "mdlm short.txt --task last-word": "file: short.txt text 1 has one word alone; leave it o",
        "mdlm notes.txt --task infill --count 1": "--count: must be at least 2, got 1",
        "mdlm notes.txt --task infill --count few": "--count: must be a whole number, got",
        "mdlm notes.txt --task infill --length 9": "--length: 9 tokens are more than the model's ",
        "mdlm notes.txt --task infill --length 2": "--length: must be at least 3, got 2",
        "mdlm notes.txt --task infill --replicates 1": "--replicates: must be at least 2, got 1",
        "mdlm notes.txt --task infill --batch_size 0": "--batch_size: must be at least 1, got 0",
        "mdlm notes.txt --task infill --seed -1": "--seed: must be at least 0, got -1",
        "mdlm notes.txt --task infill --device tpu": "--device: unknown name 'tpu'; known: auto, ",
        "mdlm notes.txt --task infill --out hollow": "--out: hollow is a folder; name a file",
        "mdlm notes.txt --task infill --tsk x": "--tsk: unknown option; did you mean --task?",
        "mdlm notes.txt more --task infill": "'more': is one word too many; partita accuracy --he",
        "chars greek.txt --task last-word --out new/results.json": f"file: {GREEK}",
    },
    "ngram": {
        "": "train: must be given; partita ngram --help",
        "notes.txt": "train: there is nothing to do with the counts; give --test, --infill, ",
        "nowhere.txt --samples 2": "train: nowhere.txt does not exist; check the name",
        "empty.txt --samples 2": "train: empty.txt holds no text; name another file",
        "binary.txt --samples 2": f"train: binary.txt {BINARY}",
        "latin.txt --samples 2": f"train: latin.txt {LATIN}",
        "hollow --samples 2": "train: the folder hollow holds no files; name another",
        "rows.jsonl --samples 2": "train: rows.jsonl line 1 has no text under 'text'; it has: bo",
        "short.txt --samples 2": "train: has 5 tokens, too few for grams of 5; give more text, or",
        "notes.txt --samples 2 --order 0": "--order: must be at least 1, got 0",
        "notes.txt --samples 2 --order 17": "--order: must be at most 16, got 17",
        "notes.txt --samples 2 --order x": "--order: must be a whole number, got 'x'",
        "notes.txt --samples -1": "--samples: must be at least 0, got -1",
        "notes.txt --samples 2 --temperature -1": "--temperature: must be at least 0, got -1.0",
        "notes.txt --samples 2 --temperature 1e-320": "--temperature: must be 0, or from 1e-30 to ",
        "notes.txt --samples 2 --top_p 2": "--top_p: must be in (0, 1], got 2.0",
        "notes.txt --samples 2 --top_k 0": "--top_k: must be at least 1, got 0",
        "notes.txt --samples 2 --limit 0": "--limit: must be at least 1, got 0",
        "notes.txt --samples 2 --limit 4": "train: has 4 tokens, too few for grams of 5; give mo",
        "notes.txt --samples 2 --length 2": "--length: must be at least 3, got 2",
        "notes.txt --samples 2 --seed -1": "--seed: must be at least 0, got -1",
        "notes.txt --samples 2 --tokenizer nowhere": "--tokenizer: nowhere does not exist",
        "notes.txt --samples 2 --tokenizer hollow": "--tokenizer: hollow holds neither a model",
        "notes.txt --samples 2 --tokenizer text8": f"train: the character '0' {UNKNOWN}",
        "greek.txt --samples 2 --tokenizer chars": f"train: {GREEK}",
        "notes.txt --samples 2 --judge mdlm": "--judge: mdlm is no autoregressive model; train o",
        "notes.txt --samples 2 --judge nowhere": "--judge: nowhere does not exist",
        "notes.txt --samples 2 --judge ar --device tpu": "--device: unknown name 'tpu'; known: a",
        "notes.txt --test test.txt --judge ar": "--judge: there are no samples to look at; give",
        "notes.txt --test nowhere.txt": "--test: nowhere.txt does not exist; check the name",
        "notes.txt --test empty.txt": "--test: empty.txt holds no text; name another file",
        "notes.txt --test greek.txt --tokenizer chars": f"--test: {GREEK}",
        "notes.txt --infill nowhere.txt": "--infill: nowhere.txt does not exist; check the name",
        "notes.txt --infill short.txt": "--infill: short.txt has no word with 256 tokens around ",
        "notes.txt --infill notes.txt --count 1": "--count: must be at least 2, got 1",
        "notes.txt --infill notes.txt --beam 0": "--beam: must be at least 1, got 0",
        "notes.txt --last_word short.txt": "--last_word: short.txt text 1 has one word alone; le",
        "notes.txt --last_word nowhere.txt": "--last_word: nowhere.txt does not exist; check the",
        "notes.txt --samples 2 --out hollow": "--out: hollow is a folder; name a file",
        "notes.txt --sampls 2": "--sampls: unknown option; did you mean --samples?",
        "notes.txt more.txt --samples 2": "'more.txt': is one word too many; partita ngram --hel",
        "notes.txt --test empty.txt --out new/results.json": "--test: empty.txt holds no text; na",
    },
    "compare": {
        "": "--judge: must be given; partita compare --help",
        "--judge ar": "models: none is given; name one or more",
        "mdlm": "--judge: must be given; partita compare --help",
        "nowhere --judge ar": "model: nowhere does not exist",
        "mdlm nowhere --judge ar": "model: nowhere does not exist",
        "mdlm mdlm --judge ar": "models: 'mdlm' is there twice; give it once",
        "mdlm --judge mdlm": "--judge: mdlm is no autoregressive model; train one with --method",
        "mdlm --judge nowhere": "--judge: nowhere does not exist",
        "mdlm --judge ar --steps []": "--steps: is empty; give a list such as [8,64]",
        "mdlm --judge ar --steps [0]": "--steps: must be at least 1, got 0",
        "mdlm --judge ar --steps 8": "--steps: must be a list, such as [512,2048], got '8'",
        "mdlm --judge ar --schedules [square]": "--schedules: unknown name 'square'; ",
        "mdlm --judge ar --schedules []": "--schedules: is empty; give a list such as [cosine]",
        "mdlm --judge ar --schedules [linear,linear]": "--schedules: 'linear' is there twice; give",
        "mdlm --judge ar --samples 1": "--samples: must be at least 2, got 1",
        "mdlm --judge ar --length 9": "--length: 9 positions are more than the model's 8; shorten",
        "mdlm --judge ar --seed -1": "--seed: must be at least 0, got -1",
        "mdlm --judge ar --device tpu": "--device: unknown name 'tpu'; known: auto, cpu, cuda",
        "mdlm --judge ar --batch_size 0": "--batch_size: must be at least 1, got 0",
        "mdlm --judge ar --speed light": "--speed: unknown name 'light'; known: auto, eager, cud",
        "mdlm --judge ar --sampler dice": "--sampler: unknown name 'dice'; known: ",
        "mdlm --judge ar --sampler first-hitting": "--steps: is not an option of sampler 'first-",
        "mdlm --judge ar --temperature -1": "--temperature: must be at least 0, got -1.0",
        "mdlm --judge ar --temperature 1e-320": "--temperature: must be 0, or from 1e-30 to ",
        "mdlm --judge ar --top_p 2": "--top_p: must be in (0, 1], got 2.0",
        "mdlm --judge ar --options.luck 1": "--options.luck: is not an option of sampler 'ances",
        "mdlm --judge ar --options.length 4": "--options.length: is no option of a sampler",
        "mdlm --judge ar --picture hollow": "--picture: hollow is a folder; name a file",
        "mdlm --judge ar --out notes.txt/x": "--out: notes.txt is no folder; choose another place",
        "ar --judge ar": "models: ar has no sampler with a number of steps; leave it out",
        "mdlm --judge ar --steps [4,4]": "--steps: 4 is there twice; give it once",
        "mdlm --judge ar --out x --picture x": "--picture: is the same file as --out; name another",
    },
    "vq": {  # and, with models of images, tests/models/test_image_models.py
        "": "images, out: must be given; partita vq --help",
        "digits": "out: must be given; partita vq --help",
        "digits mdlm": "out: mdlm exists already; choose another folder",
        f"digits {LONG}": f"out: {LONG} is too long a name; choose a shorter one",
        "digits notes.txt/x": "out: notes.txt is no folder; choose another place",
        "nowhere new": "images: nowhere does not exist; known: digits",
        "notes.txt new": "images: notes.txt is no set of images; use ",
        "hollow new": "images: hollow holds no images; images are files such as ",
        "digits new --vq.batch_size 0": "vq.batch_size: must be at least 1, got 0",
        "digits new --vq.network.width 9": "vq.network.width: must be a multiple of 8, got 9",
        "digits new --vq.network.quantiser x": "vq.network.quantiser: unknown name 'x'; known",
        "digits new --vq.reconstruction x": "vq.reconstruction: unknown name 'x'; known: l2",
        "digits new --size 0": "--size: must be at least 1, got 0",
        "digits new --vq.device tpu": "vq.device: unknown name 'tpu'; known: auto, cpu, cuda",
        "digits new more": "'more': is one word too many; partita vq --help",
    },
    "info": {
        "": "model: must be given; partita info --help",
        "default": f"model: {NO_MODEL}",
        "nowhere": (
            "model: nowhere does not exist; name a run folder, a model folder or hf:OWNER/NAME on "
            "the hub\n"
        ),
        "hollow": "model: hollow holds neither a model",
        "notes.txt": "model: notes.txt is no folder of safetensors and JSON; pickled",
        "weights.pt": "model: weights.pt is no folder of safetensors and JSON; pickled",
        "mdlm ar": "'ar': is one word too many; partita info --help",
        "mdlm --jsn": "--jsn: unknown option; did you mean --json?",
    },
    "report": {
        "": "model: must be given; partita report --help",
        "nowhere": "model: nowhere does not exist",
        "hollow": "model: hollow holds neither a model",
        "weights.pt": "model: weights.pt is no folder of safetensors and JSON; pickled",
        "mdlm": "model: mdlm has nothing to report; genmd4 and sedd have",
        "sedd": "file: sedd's report needs a text to mask; give one",
        "sedd nowhere.txt": "file: nowhere.txt does not exist",
        "sedd empty.txt": "file: empty.txt holds no text",
        "sedd binary.txt": f"file: binary.txt {BINARY}",
        "sedd notes.txt more": "'more': is one word too many; partita report --help",
        "sedd notes.txt --limit 0": "--limit: must be at least 1, got 0",
        "sedd notes.txt --seed -1": "--seed: must be at least 0, got -1",
        "sedd notes.txt --device tpu": "--device: unknown name 'tpu'; known: auto, cpu, cuda",
        "sedd notes.txt --out notes.txt/a.png": "--out: notes.txt is no folder; choose another ",
        "genmd4 nowhere.txt": "file: nowhere.txt does not exist",
        "genmd4 --count 0": "--count: must be at least 1, got 0",
        "genmd4 --count few": "--count: must be a whole number, got 'few'",
        "genmd4 --out hollow": "--out: hollow is a folder",
        "genmd4 --out ''": "--out: . is a folder; name a file",
    },
    "methods": {
        "mdml": "method: unknown name 'mdml'; did you mean 'mdlm'? known: ar, ",
        "mdlm ar": "'ar': is one word too many; partita methods --help",
        "--jsn": "--jsn: unknown option; did you mean --json?",
        "--json maybe": "method: unknown name 'maybe'; known: ar, ",
    },
    "export": {
        "": "model, out: must be given; partita export --help",
        "mdlm": "out: must be given; partita export --help",
        "nowhere new": "model: nowhere does not exist",
        "hollow new": "model: hollow holds neither a model",
        "notes.txt new": "model: notes.txt is no folder of safetensors and JSON; pickled",
        "weights.pt new": "model: weights.pt is no folder of safetensors and JSON; pickled",
        "mdlm new --precision half": "--precision: unknown name 'half'; known: bfloat16, float32",
        "mdlm hollow": "out: hollow exists already; choose another folder",
        f"mdlm {LONG}": f"out: {LONG} is too long a name; choose a shorter one",
        "mdlm mdlm": "out: mdlm exists already; choose another folder",
        "mdlm notes.txt": "out: notes.txt exists already; choose another folder",
        "mdlm notes.txt/new": "out: notes.txt is no folder; choose another place",
        "mdlm notes.txt/new/model": "out: notes.txt is no folder, so notes.txt/new cannot be made",
        "mdlm ''": "out: is empty; name a folder",
        "mdlm new --private": "--private: nothing is uploaded; give --push",
        "mdlm new --push 'two words'": "--push: Repo id must use ",
        "mdlm new more": "'more': is one word too many; partita export --help",
    },
    "import": {  # and, with files to import, tests/models/test_import_bad_input.py
        "": "file, out: must be given; partita import --help",
        "nowhere.ckpt new": "file: nowhere.ckpt does not exist; check the name, or give hf:",
        "notes.txt mdlm": "out: mdlm exists already; choose another folder",
        "notes.txt new --weights best": "--weights: unknown name 'best'; known: auto, ema, raw",
        "notes.txt new --heads 0": "--heads: must be at least 1, got 0",
    },
    "bench": {
        "sleeping": "subjects: unknown name 'sleeping'; known: sampling, training",
        "--turns 0": "--turns: must be at least 1, got 0",
        "--steps 0": "--steps: must be at least 1, got 0",
        "--batch_size 0": "--batch_size: must be at least 1, got 0",
        "--vocabulary 1": "--vocabulary: must be at least 2, got 1",
        "--lengths []": "--lengths: is empty; give at least one",
        "--lengths [0]": "--lengths: must be at least 1, got 0",
        "--lengths 512": "--lengths: must be a list, such as [512,2048], got '512'",
        "--threads 0": "--threads: must be at least 1, got 0",
        "--device tpu": "--device: unknown name 'tpu'; known: auto, cpu, cuda",
        "--network.heads 3": "network.heads: width 256 must be an even multiple of heads 3",
        "--network.options.decoder_depth 12": (
            "network.options.decoder_depth: 12 of 12 blocks leave none for the"
        ),
        "--out notes.txt/speed.json": "--out: notes.txt is no folder; choose another place",
        "--out hollow": "--out: hollow is a folder; name a file",
    },
}

# The same for `train`, whose sections have a flag and a place in a YAML file for every key.
CORPORA = {
    "": "data.path: no text is given; name a file",
    "''": "data.path: no text is given; name a file",
    "nowhere.txt": "data.path: nowhere.txt does not exist; check the name",
    "empty.txt": "data.path: empty.txt holds no text; name another",
    "blank.txt": "data.path: blank.txt holds no text; name another",
    "binary.txt": f"data.path: binary.txt {BINARY}",
    "latin.txt": f"data.path: latin.txt {LATIN}",
    "hollow": "data.path: the folder hollow holds no files; name another",
    "weights.pt": "data.path: weights.pt is a binary file: it has a zero at byte 4; give text",
    "short.txt": "data.path: short.txt has 5 tokens to train on, a row takes 8; give more text",
    "notes.txt more.txt": "'more.txt': is one word too many; partita train --help",
}
OPTIONS = {  # of d3pm: what is wrong with method.options, and the message after that
    ".transition own": ".transition: unknown name 'own'; known: absorbing, gaussian, uniform",
    ".transition 3": ".transition: must be text, got 3",
    ".steps 0": ".steps: must be at least 1, got 0",
    ".steps 2.5": ".steps: must be a whole number, got 2.5",
    ".betas square": ".betas: unknown name 'square'; did you mean 'cosine-squared'? known: ",
    ".betas_options 5": ".betas_options: must be keys and values, such as {steps: 64}, got",
    ".betas_options '{end: 1.0}'": ".betas: 'mutual-information' does not take 'end'; it takes: no",
    ".betas_options '{end: x}'": ".betas_options: must be keys and values, such as ",
    ".betas linear --method.options.betas_options '{end: -3}'": ".betas_options.end: must be at l",
    ".hybrid -1": ".hybrid: must be at least 0, got -1",
    ".last_step none": ".last_step: unknown name 'none'; known: posterior, prediction",
    ".transition gaussian --method.options.steps 1000000": ".transition: 1000000 dense matrices",
    ".name x": ".name: d3pm has no such choice; it takes: transition, betas, betas_options, steps",
}
RECIPES = {
    "--network.length 9999": "network.length: 1283 tokens do not fill one row of 9999; give more",
    "--network.length 9999 --data.cache new": "data.path: notes.txt has 1283 tokens to train on, ",
    "--network.widht 3": "--network.widht: unknown option; did you mean --network.width?",
    "--netwrk.width 3": "--netwrk.width: unknown option; did you mean --network.width?",
    "--network 3": "--network: is a section with keys of its own; write --network.KEY",
    "--method pgm": "--method: is a section with keys of its own; write --method.name pgm",
    "--steps 5": "--steps: unknown option; did you mean --training.steps or --distillation.steps",
    "--lr 1": "--lr: unknown option; partita train --help shows what there is",
    "--network.width wide": "network.width: must be a whole number, got 'wide'",
    "--network.width 1.5": "network.width: must be a whole number, got '1.5'",
    "--network.width": "--network.width: needs a value; partita train --help",
    "--network.width -16": "network.width: must be at least 1, got -16",
    "--network.width 17": "network.heads: width 17 must be an even multiple of heads 2",
    "--network.width 2000000": "network: its weights take ",
    "--network.width 1000000000": "network: no network can be made of it: ",
    "--network.width 99999999999999999999": "network.width: must be at most ",
    "--network.depth 0": "network.depth: must be at least 1, got 0",
    "--network.depth 999999999": "network.depth: must be at most ",
    "--network.length 0": "network.length: must be at least 1, got 0",
    "--network.mlp cube": "network.mlp: unknown name 'cube'; known: gelu, relu2, swiglu",
    "--network.mlp_ratio 0": "network.mlp_ratio: must be a positive, finite number, got 0",
    "--network.mlp_ratio .nan": "network.mlp_ratio: must be a positive, finite number, got nan",
    "--network.mlp_ratio 0.01": "network.mlp_ratio: 0.01 times width 16 is no channel; give more",
    "--network.norm batch": "network.norm: unknown name 'batch'; known: affine, layer, rms",
    "--network.options.queries mean": f"network.options.queries: transformer {NO_DECODER}",
    "--method.name pgm --network.options.queries max": (
        "network.options.queries: unknown name 'max'; known: positions, "
    ),
    "--method.name pgm --network.options.process cube": (
        "network.options.process: unknown name 'cube'; known: linear"
    ),
    "--method.name pgm --network.options.process 3": "network.options.process: must be text, got 3",
    "--method.name pgm --network.options.decoder_width 0": (
        "network.options.decoder_width: must be at least 1, got 0"
    ),
    "--method.name pgm --network.options.decoder_depht 2": (
        "network.options.decoder_depht: partition has no such choice; did you mean decoder_depth? "
    ),
    "--method.name pgm --network.kind unet": (
        "network.kind: 'unet' reads tokens, but this method's network reads groups; these fit: par"
    ),
    "--network.kind u-net": "network.kind: unknown name 'u-net'; did you mean 'unet'? known: ",
    "--network.patch 2": "--network.patch: has another name now; write --network.options.patch",
    "--network.decoder.depth=2": (
        "--network.decoder.depth: has another name now; write --network.options.decoder_depth"
    ),
    "--method.corruption rate": "method.corruption: rate takes functions, which only Python has",
    "--network.options some": "network.options: must be keys and values, such as {steps: 64}, got ",
    "--method.name pgm --network.options.decoder_depth 1": (
        "network.options.decoder_depth: 1 of 1 blocks leave no"
    ),
    "--method.name pgm --network.options.decoder_width 7": (
        "network.options.decoder_width: width 7 must be an even"
    ),
    "--method.name pgm --method.conditioning time": "method.conditioning: is 'time', but the two ",
    "--network.dropout 2": "network.dropout: must be in [0, 1), got 2",
    "--network.rotary_base -1": "network.rotary_base: must be a positive, finite number, got -1",
    "--network.condition_width 0": "network.condition_width: must be at least 1, got 0",
    "--network.qk_norm maybe": "--network.qk_norm: must be true or false, got 'maybe'",
    "--method.name mdml": "method.name: unknown name 'mdml'; did you mean 'mdlm'? known: ",
    "--method.schedule square": "method.schedule: unknown name 'square'; did you mean ",
    "--method.schedule_options.exponent 2": "method.schedule: 'log-linear' does not take 'expon",
    "--method.schedule polynomial --method.schedule_options.exponent -2": (
        "method.schedule_options.exponent: must be at least 0, got -2"
    ),
    "--method.schedule_options 3": "method.schedule_options: must be keys and values, such as ",
    "--method.corruption cubic": "method.corruption: unknown name 'cubic'; known: clipped, ",
    "--method.corruption discrete --method.corruption_options.steps 0": (
        "method.corruption_options.steps: must be at least 1, got 0"
    ),
    "--method.corruption_options.steps 4": "method.corruption: 'subset' does not take 'steps'; it ",
    "--method.conditioning heat": "method.conditioning: unknown name 'heat'; known: none, ",
    "--method.conditioning time": "method.corruption: Subset hides tokens without a time",
    "--method.name ar --method.corruption subset": "method.corruption: ar has no such choice; lea",
    "--method.name d3pm --method.schedule cosine": "method.schedule: d3pm has no such choice; le",
    "--method.name d3pm --sampling.sampler ancestral": (
        "sampling.sampler: 'ancestral' does not fit a chain model; these do: reverse"
    ),
    "--method.name sedd --method.schedule linear": "method.schedule: ends at alpha = 0, where ",
    "--method.name sedd --method.options.graph ring": "method.options.graph: unknown name 'ring'",
    "--method.name sedd --method.corruption subset": "method.corruption: sedd has no such choice; ",
    "--method.name sedd --sampling.sampler reverse": (
        "sampling.sampler: 'reverse' does not fit a score model; these do: analytic, tau-leaping"
    ),
    "--method.name genmd4 --method.schedule_options.exponent 0": (
        "method.schedule_options.exponent: must be a positive, finite number, got 0"
    ),
    "--method.name genmd4 --method.schedule_options.speed 1": "method.schedule_options: has speed",
    "--method.name genmd4 --method.conditioning none": "method.conditioning: genmd4 has no such ",
    "--method.name genmd4 --network.options.queries x": (
        f"network.options.queries: transformer {NO_DECODER}"
    ),
    "--method.name ddpm --method.options.steps 1": "method.options.steps: must be at least 2, got",
    "--method.name ddpm --method.options.dimensions 0": "method.options.dimensions: must be at le",
    "--method.name ddpm --method.options.learned maybe": "method.options.learned: must be true or",
    "--method.name ddpm --method.schedule square": "method.schedule: unknown name 'square'; did ",
    "--method.options.steps 4": "method.options.steps: mdlm has no such choice; it takes: none",
    "--method.options 4": "method.options: must be keys and values, such as ",
    "--training.steps 0": "training.steps: must be at least 1, got 0",
    "--training.steps many": "training.steps: must be a whole number, got 'many'",
    "--training.steps 99999999999999999999": "training.steps: must be at most ",
    "--training.seconds 3": "training.steps, training.seconds: both say how long the run is; give",
    "--training.steps null --training.seconds .inf": "training.seconds: must be a positive, fin",
    "--training.batch_size 0": "training.batch_size: must be at least 1, got 0",
    "--training.batch_size 99999999999999": "training.batch_size: 99,999,999,999,999 rows of 8 ",
    "--training.length 9": "training.length: 9 is longer than the network's 8; give less, or",
    "--training.batch_size 1000000000": "training.batch_size: 1,000,000,000 rows of 8 tokens take ",
    "--training.learning_rate 1e300": "training.learning_rate: must be at most 1e+30, got 1e+300",
    "--training.optimizer sgd": "training.optimizer: unknown name 'sgd'; known: adamw, muon",
    "--training.optimiser muon": "--training.optimiser: has another name now; write",
    "--training.optimzer muon": "--training.optimzer: unknown option; did you mean --training.o",
    "--run.capture false": "--run.capture: has another name now; write --run.cuda_graph",
    "--training.learning_rate 0": "training.learning_rate: must be a positive, finite number",
    "--training.learning_rate nan": "training.learning_rate: must be a number, got 'nan'",
    "--training.learning_rate 1e30": "training: the gradient's norm is inf at step 2, whose rows",
    "--training.lr_schedule up": (
        "training.lr_schedule: unknown name 'up'; known: constant, cosine, wsd"
    ),
    "--training.warmup 1": "training.warmup: is a share of the run from 0 up to, but without, 1",
    "--training.weight_decay -1": "training.weight_decay: must be at least 0, got -1",
    "--training.weight_decay .inf": "training.weight_decay: must be finite, got inf",
    "--training.max_grad_norm 0": "training.max_grad_norm: must be a positive number, got 0",
    "--training.ema_decay 1": "training.ema_decay: must lie in [0, 1), got 1",
    "--training.precision float8": "training.precision: unknown name 'float8'; known: bfloat16, ",
    "--training.seed -1": "training.seed: must be at least 0, got -1",
    "--training.seed 99999999999999999999": "training.seed: must be at most ",
    "--sampling.sampler gibbs": "sampling.sampler: unknown name 'gibbs'; known: analytic, ",
    "--sampling.sampler autoregressive": "sampling.sampler: 'autoregressive' does not fit a mas",
    "--sampling.steps 0": "sampling.steps: must be at least 1, got 0",
    "--sampling.temperature -1": "sampling.temperature: must be at least 0, got -1",
    "--sampling.temperature 1e-320": "sampling.temperature: must be 0, or from 1e-30 to 1e+30, ",
    "--sampling.top_k 0": "sampling.top_k: must be at least 1, got 0",
    "--sampling.top_p 2": "sampling.top_p: must be in (0, 1], got 2",
    "--sampling.options.stps 3": "sampling.options.stps: is not an option of sampler 'ancestral'",
    "--sampling.options.count 3": "sampling.options.count: is no option of a sampler",
    "--sampling.sampler confidence --sampling.options.counts x": (
        "sampling.options.counts: unknown name 'x'; known: arccos, "
    ),
    "--run.device tpu": "run.device: unknown name 'tpu'; known: auto, cpu, cuda",
    "--run.device cuda:99": "run.device: there is no ",
    "--run.parallel tp": "run.parallel: unknown name 'tp'; known: ddp, fsdp",
    "--run.micro_batch 0": "run.micro_batch: must be at least 1, got 0",
    "--run.log_every 0": "run.log_every: must be at least 1, got 0",
    "--run.keep_checkpoints 0": "run.keep_checkpoints: must be at least 1, got 0",
    "--run.previews -1": "run.previews: must be at least 0, got -1",
    "--data.rows loose": "data.rows: unknown name 'loose'; known: packed, padded",
    "--data.longer never": "data.longer: unknown name 'never'; known: cut, skip, refuse",
    "--data.longer skip": "data.longer: is 'skip', but packed rows cut no document off; leave it ",
    "--data.rows padded --data.longer refuse": (
        "network.length: 40 of 40 documents have more than 8 tokens, the longest 34; give --network"
    ),
    "--method.name flexmdm": LONGER,
    "--method.name flexmdm --data.cache new": LONGER,
    "--method.name flexmdm --data.longer refuse": LONGER,
    "--method.name flexmdm --data.longer skip": "data.longer: skip leaves nothing: every document",
    "--method.name flexmdm --data.longer skip --data.cache new": "data.longer: skip leaves nothin",
    "--method.name flexmdm --data.rows packed": (
        "data.rows: packed rows have no ends of their own, and flexmdm learns where texts end; leav"
    ),
    "--method.name flexmdm --method.corruption subset": "method.corruption: flexmdm has no such ",
    "--method.name flexmdm --method.options.gaps x": "method.options.gaps: unknown name 'x'; know",
    "--method.name flexmdm --network.options.queries x": (
        f"network.options.queries: flexible {NO_DECODER}"
    ),
    "--method.name flexmdm --sampling.sampler ancestral": (
        "sampling.sampler: 'ancestral' does not fit a flexible model; these do: insertion"
    ),
    "--data.documents page": "data.documents: unknown name 'page'; known: paragraph, ",
    "--data.validation_fraction 1": (
        "data.validation_fraction: is a share of the tokens, got 1.0; give"
    ),
    "--data.cache notes.txt/cache": "data.cache: notes.txt is no folder, so notes.txt/cache can",
    "--data.cache ''": "data.cache: is empty; name a folder",
    "--tokenizer.name gpt9": "tokenizer.name: unknown name 'gpt9'; known: bpe, bytes, ",
    "--tokenizer.name text8": NEWLINE,
    "--tokenizer.vocab_size 9": "tokenizer.vocab_size: must be at least 256, got 9",
    "--out notes.txt": "--out: notes.txt is no folder; choose another place",
    "--out notes.txt/run": "--out: notes.txt is no folder, so notes.txt/run cannot be made; choo",
    "--out ''": "--out: is empty; name a folder, or leave it out",
    "--out": "--out: needs a value; partita train --help",
    "--from nowhere": "--from: nowhere does not exist",
    "--from default": f"--from: {NO_MODEL}",
    "--from hollow": "--from: hollow holds neither a model",
    "--from notes.txt": "--from: notes.txt is no folder of safetensors and JSON; pickled",
    "--from weights.pt": "--from: weights.pt is no folder of safetensors and JSON; pickled",
    "--from": "--from: needs a value; partita train --help",
    "--from mdlm --network.width 32": "network.width: is 32, but the model of mdlm has 16",
    "--from mdlm --tokenizer.name bpe": "tokenizer.name: is 'bpe', but the model of mdlm has ",
    "--from mdlm --method.name ar": "method.name: is 'ar', but the model of mdlm has 'mdlm'",
    "--from ar --method.name flexmdm": "method.name: is 'flexmdm', but the model of ar has 'ar'",
    "--from flex --method.name mdlm": "method.name: is 'mdlm', but the model of flex has 'flexmdm'",
    "--from mdlm --method.name flexmdm": LONGER,
    "--from flex --data.longer cut --method.options.gaps distribution": (
        "method.options.gaps: is 'distribution', but the model of flex has None, which training "
    ),
    "--distillation.round 1": "distillation.round: a student needs a teacher to start from; give ",
    "--from mdlm --method.name flexmdm --network.width 32": "network.width: is 32, but the model ",
    "--from mdlm --method.name flexmdm --tokenizer.name bpe": "tokenizer.name: is 'bpe', but the ",
    "--from mdlm --method.name flexmdm --method.corruption subset": "method.corruption: flexmdm",
    "--config nowhere.yaml": "--config: nowhere.yaml does not exist; name a YAML file",
    "--config hollow": "--config: hollow cannot be read: Is a directory",
    "--config": "--config: needs a value; partita train --help",
    "--config empty.yaml": "--config: empty.yaml holds no recipe; partita train --print_config",
    "--config list.yaml": "--config: list.yaml holds no recipe; partita train --print_config",
    "--config number.yaml": "--config: number.yaml holds no recipe; partita train --print_config",
    "--config notes.txt": "--config: notes.txt holds no recipe; partita train --print_config",
    "--config broken.yaml": "--config: broken.yaml is no YAML: ",
    "--config tab.yaml": "--config: tab.yaml is no YAML: ",
    "--config binary.yaml": "--config: binary.yaml is no YAML: ",
    "--config loop.yaml": "--config: loop.yaml is no YAML: ",
    "--config flat.yaml": "--config: flat.yaml: network must hold keys, got 16; ",
    "--config null.yaml": "--config: null.yaml holds no recipe; partita train --print_config",
    "--config key.yaml": "network.widht: unknown key (in key.yaml); did you mean network.width?",
    "--config section.yaml": "netwrk.width: unknown key (in section.yaml); did you mean ",
    "--config numbered.yaml": "network.16: unknown key (in numbered.yaml); ",
    "--config spaced.yaml": "net work.width: unknown key (in spaced.yaml); did you mean ",
    "--config pointed.yaml": "data.field:`0.1: unknown key (in pointed.yaml); did you mean data.",
    "--config tabbed.yaml": "traini ng.steps: unknown key (in tabbed.yaml); did you mean training",
    "--config words.yaml": "--training: is a section with keys of its own (in words.yaml); write",
    "--config huge.yaml": "options: int too large to convert to float (in huge.yaml)",
    f"--network.dropout {'9' * 400}": "--network.dropout: int too large to convert to float",
    f"--network.dropout=-{'9' * 400}": "--network.dropout: int too large to convert to float",
    "--config type.yaml": "training.max_grad_norm: must be a number, got 'soft' (in type.yaml)",
    "--config nan.yaml": "training.max_grad_norm: must be a positive number, got nan (in nan.yaml)",
    "--config decoder.yaml": "network.decoder: has another name now (in decoder.yaml); write net",
    "--config range.yaml": (
        "training.max_grad_norm: must be a positive number, got -3.0 (in range.yaml)"
    ),
    "--config=range.yaml": (
        "training.max_grad_norm: must be a positive number, got -3.0 (in range.yaml)"
    ),
    "--config endless.yaml": "training.steps, training.seconds: both say how long the run is",
} | {
    f"--method.name d3pm --method.options{key}": f"method.options{text}"
    for key, text in OPTIONS.items()
}
TABLE["train"] = {f"{words} {SIZES} {PACE}": text for words, text in CORPORA.items()} | {
    f"notes.txt {SIZES} {PACE} {words}": text for words, text in RECIPES.items()
}
CASES = [
    pytest.param(f"{verb} {words}", message, id=f"{verb}-{n}-{words[-40:]}")
    for verb, cases in TABLE.items()
    for n, (words, message) in enumerate(cases.items())
]


@pytest.mark.parametrize(("words", "message"), CASES)
def test_bad_input_is_one_message_and_changes_nothing(words, message, here, capsys):
    before = listing(here)
    code = run(words)
    check(code, capsys.readouterr().err, message)
    assert listing(here) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("demo --infill __88__", "--infill: has 88 tokens, the model takes 64; shorten it"),
        ("demo --infill __88__ --seconds 1", "--infill: has 88 tokens, the model takes 48; short"),
        ("demo --infill __0__", "--infill: the blank '__0__' is empty; give it a size"),
        ("sample --length 65", "--length: 65 positions are more than the model's 64; shorten it"),
        ("sample --prompt 'a' --steps 0", "--steps: must be at least 1, got 0"),
        ("infill", "text: must be given; partita infill --help"),
        ("infill mdlm", "text: has no blank; write one as ____"),
        ("infill 'a __99__'", "text: 101 positions are more than the model's 64; shorten it"),
        ("infill nowhere 'a ____'", "model: nowhere does not exist"),
        ("infill 'a ____' --hide right", "--hide: is for images, and this is a model of text"),
        ("infill 5 --hide right", "--hide: is for images, and this is a model of text"),
        ("score default", "texts: there are none beside 'default', which is taken for the model"),
        ("score 'a text' 'and another'", f"model: a text does not exist; {KNOWN}"),
        (f"score {'word' * 99} another", f"model: {'word' * 99} cannot be read: File name too lo"),
        ("info nowhere", f"model: nowhere does not exist; {KNOWN}"),
        ("eval default nowhere.txt", "file: nowhere.txt does not exist; check the name"),
        ("eval mdlm --judge default", "--judge: default is no autoregressive model; train one"),
        ("accuracy hollow notes.txt --task infill", "model: hollow holds neither a model"),
    ],
)
def test_bad_input_where_a_model_is_shipped(words, message, here, shipped, capsys):
    before = listing(here), listing(shipped)
    code = run(words)
    check(code, capsys.readouterr().err, message)
    assert (listing(here), listing(shipped)) == before


def test_every_verb_is_in_the_table():
    assert set(TABLE) == set(VERBS)


def test_an_unknown_verb(capsys):
    check(
        run("trian notes.txt"),
        capsys.readouterr().err,
        "verb: unknown name 'trian'; did you mean train? known: ",
    )


# Runs that are there already ---------------------------------------------------------------------


def test_a_changed_recipe_is_refused_with_what_changed(here, capsys):
    before = listing(here)
    code = run(f"{TRAIN} --out mdlm --training.steps 5 --network.depth 2 --training.ema_decay 0.5")
    err = capsys.readouterr().err
    assert (code, err.splitlines()) == (
        2,
        [
            "partita: --out: mdlm holds a run of another recipe. There -> here:",
            "  network.depth: 1 -> 2",
            "  training.ema_decay: 0.99 -> 0.5",
            "  training.steps: 3 -> 5",
            "Give the same options to go on with it, or --out for a run of its own "
            "(partita train --from mdlm starts it from these weights)",
        ],
    )
    assert listing(here) == before


def test_a_changed_text_is_refused(copy, capsys):
    (copy / "notes.txt").write_text(NOTES.replace("short", "long"))
    before = listing(copy)
    message = (
        "--out: mdlm holds a run on another text: the contents of notes.txt differ; give --out"
    )
    check(run(f"{TRAIN} --out mdlm"), capsys.readouterr().err, message)
    assert listing(copy) == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", b"{", "--out: mdlm/recipe.json is damaged: "),
        ("recipe.json", b"{}", "--out: mdlm/recipe.json is damaged: it lacks the recipe; give"),
        ("checkpoints/step-00000003/state.json", b"{}", "--out: mdlm/checkpoints/step-00000003/"),
        ("checkpoints/step-00000003/manifest.json", b"", "--out: mdlm/checkpoints/step-00000003/"),
    ],
)
def test_a_damaged_run_is_not_touched(copy, capsys, name, content, message):
    (copy / "mdlm" / name).write_bytes(content)
    before = listing(copy)
    check(run(f"{TRAIN} --out mdlm"), capsys.readouterr().err, message)
    assert listing(copy) == before


def test_checkpoints_without_a_recipe_are_not_touched(copy, capsys):
    (copy / "mdlm/recipe.json").unlink()
    before = listing(copy)
    message = "--out: mdlm holds checkpoints but no recipe.json; give --out"
    check(run(f"{TRAIN} --out mdlm"), capsys.readouterr().err, message)
    assert listing(copy) == before


def test_damaged_tokens_are_named_with_the_way_out(copy, capsys):
    tokens = Path("prepared", json.loads((copy / "mdlm/recipe.json").read_text())["tokens"])
    (copy / tokens / "train/manifest.json").write_text("{}")
    before = listing(copy)
    for words in ("prepare notes.txt", f"{TRAIN} --out mdlm", f"{TRAIN} --out new"):
        code, err = run(words), capsys.readouterr().err
        check(code, err, f"data.cache: {tokens}/train/manifest.json was changed, or ")
        assert err.endswith(f"; remove {tokens}, and it is made anew\n")
    assert listing(copy) == before


@pytest.mark.parametrize("out", ["new", "mdlm", "hollow"])
@pytest.mark.parametrize(
    ("words", "module", "package"),
    [
        ("--run.wandb project", "wandb", "wandb"),
        ("--run.tensorboard", "torch.utils.tensorboard", "tensorboard"),
    ],
)
def test_a_missing_package_leaves_new_and_old_runs_alone(
    here, capsys, monkeypatch, words, module, package, out
):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    before = listing(here)
    message = f"run.{package}: needs the package {package}; pip install 'partita[{package}]'"
    check(run(f"{TRAIN} --out {out} {words}"), capsys.readouterr().err, message)
    assert listing(here) == before


def test_a_run_that_broke_keeps_its_numbers_and_may_begin_anew(copy, capsys):
    """A loss that breaks before the first checkpoint; the numbers on the way are worth a look."""
    broken = f"{TRAIN} --out new --run.log_every 1 --training.learning_rate 1e30"
    check(run(broken), capsys.readouterr().err, "training: the gradient's norm is inf at step 2")
    lines = (copy / "new/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert run(f"{TRAIN} --out new") == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to folders that are closed to others")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("prepare notes.txt --data.cache closed/new", "data.cache: closed is closed to writing"),
        (f"{TRAIN} --data.cache closed/new", "data.cache: closed is closed to writing"),
        (f"{TRAIN} --out closed/new", "--out: closed is closed to writing; choose another place"),
        ("eval mdlm --samples 2 --out closed/x.json", "--out: closed is closed to writing; choose"),
        ("export mdlm closed/new", "out: closed is closed to writing; choose another place"),
    ],
)
def test_a_folder_that_is_closed_to_writing(copy, capsys, words, message):
    (copy / "closed").mkdir(mode=0o555)
    before = listing(copy)
    check(run(words), capsys.readouterr().err, message)
    assert listing(copy) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to folders that are closed to others")
def test_tokens_in_a_folder_that_is_closed_to_writing_serve_as_they_are(copy):
    (copy / "prepared").chmod(0o555)
    assert run("prepare notes.txt") == 0
    assert run(f"{TRAIN} --out new") == 0


# In a process of its own -------------------------------------------------------------------------

STEPS = TRAIN.replace("--training.steps 3", "--training.steps 6 --run.checkpoint_every 2")
HALF = f"{STEPS} --run.keep_checkpoints 9 --out half"
# name -> words, bytes that a file may have, and how the message begins. A limit on the size of
# files is what a full disk is to the one who writes: some bytes fit, the next do not.
ALONE = {
    "prepare on a full disk": (
        "prepare notes.txt --data.cache new/cache",
        1_000,
        "new/cache/41f2bb6a5178e403a2ee: File too large; raise the limit",
    ),
    "train on a full disk: tokens": (f"{TRAIN} --data.cache new/cache", 1_000, "new/cache/"),
    "train on a full disk: recipe": (f"{TRAIN} --out new/run", 1_000, "new/run/recipe.json: File"),
    "train on a full disk: curves": (f"{TRAIN} --out new/run", 20_000, "new/run/curves.png: File"),
    "train on a full disk: weights": (
        f"{STEPS} --out new/run",
        40_000,
        "{folder}/new/run/checkpoints/step-00000002: File too large; raise the limit",
    ),
    "train on a full disk: optimiser": (
        f"{STEPS} --out hollow",
        60_000,
        "{folder}/hollow/checkpoints/step-00000002: File too large; raise the limit",
    ),
    "export on a full disk": (
        "export mdlm new/model",
        20_000,
        "{folder}/new/model: File too large",
    ),
    "eval on a full disk": (
        "eval mdlm --samples 2 --out new/results.json",
        100,
        "new/results.json: File too large; raise the limit",
    ),
    "eval on a full disk, over old results": (
        "eval mdlm --samples 2 --out list.yaml",
        100,
        "list.yaml: File too large; raise the limit",
    ),
    # Values of wrong types, which the checker of the test run would refuse before the library.
    "a threshold in words": (
        "sample mdlm --sampler threshold --options.threshold high",
        None,
        "--options.threshold: must be a number, got 'high'",
    ),
    "counts by number": (
        "sample mdlm --sampler confidence --options.counts 3",
        None,
        "--options.counts: must be a rule or numbers of positions, got 3",
    ),
    "an order of words": (
        "sample mdlm --sampler ordered --options.order [a,b]",
        None,
        "--options.order: must name each of the 8 positions once, got ['a', 'b']",
    ),
    "a block by name": (
        "infill mdlm 'a ____' --sampler blocks --options.block_length two",
        None,
        "--options.block_length: must be a whole number, got 'two'",
    ),
    "a rate by number": (
        f"{TRAIN} --method.corruption rate --method.corruption_options.rate 3",
        None,
        "method.corruption: rate takes functions, which only Python has; use the method's own",
    ),
    # Bytes that are no text, as a shell may pass them on.
    "bytes to score": ("score mdlm a\udcff", None, "texts: is no UTF-8 text at character 1"),
    "bytes to fill in": ("infill mdlm '\udcff __'", None, "text: is no UTF-8 text at character 0"),
    "bytes to go on from": (
        "sample mdlm --prompt a\udcff",
        None,
        "--prompt: is no UTF-8 text at character 1",
    ),
    "nothing on standard input": (
        "score mdlm --file -",
        None,
        "--file: standard input holds no text; write",
    ),
}


def attempt(words, limit):
    """What a verb does in this process, under a limit."""
    before, err = listing(Path.cwd()), io.StringIO()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if limit is None else limit, hard))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            code = run(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    after = listing(Path.cwd())
    changed = [name for name in {*before, *after} if before.get(name, 0) != after.get(name, 0)]
    return code, err.getvalue(), sorted(changed)


def alone(script, folder, **options):
    """Run a script in a process of its own, where nothing checks types."""
    root = str(Path(__file__).parents[2])
    # Modules that are compiled under a limit would be cut short.
    more = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": root}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )


@pytest.fixture(scope="module")
def outcomes(place, tmp_path_factory):
    """What came of every case of the table above, and of a run that is resumed on a full disk."""
    folder = tmp_path_factory.mktemp("alone") / "copy"
    shutil.copytree(place, folder)
    script = """
import json
from tests.commands import test_verbs_bad_input as here
results = {name: here.attempt(*case[:2]) for name, case in here.ALONE.items()}
assert here.run(here.HALF) == 0
for step in (4, 6):
    here.shutil.rmtree(f"half/checkpoints/step-{step:08}")
results["resumed"] = here.attempt(here.HALF, 60_000)
print("\\0" + json.dumps(results))
"""
    result = alone(script, folder, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    return folder, json.loads(result.stdout.rpartition("\0")[2])


@pytest.mark.parametrize("name", ALONE)
def test_bad_input_in_a_process_of_its_own(name, outcomes):
    folder, results = outcomes
    code, err, changed = results[name]
    check(code, err, ALONE[name][2].format(folder=folder))
    assert changed == []


def test_a_resumed_run_survives_a_full_disk(outcomes, monkeypatch, capsys):
    folder, results = outcomes
    monkeypatch.chdir(folder)
    code, err, changed = results["resumed"]
    check(code, err, f"{folder}/half/checkpoints/step-00000004: File too large; raise the limit")
    assert changed == ["half/metrics.jsonl"]  # the steps in between; what it lacked is not there
    lines = [json.loads(line) for line in Path("half/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert load("half/checkpoints/step-00000002").sample(1, seed=3)
    assert run(HALF) == 0
    assert "going on from step-00000002" in capsys.readouterr().out
    assert load("half/checkpoints/step-00000006").sample(1, seed=3)


# Good input --------------------------------------------------------------------------------------


def test_good_runs_say_nothing_on_standard_error(copy):
    verbs = [
        "methods",
        "methods --json",
        "prepare notes.txt --tokenizer.name bpe --tokenizer.vocab_size 300",
        f"{TRAIN} --out new/run --run.previews 2 --run.validate_every 1 --run.tensorboard",
        f"{TRAIN} --out new/run --run.previews 2 --run.validate_every 1 --run.tensorboard",
        f"{TRAIN} --out new/more --from mdlm",
        "sample new/run --count 2",
        "sample mdlm --show --sampler blocks --length 20",
        "infill mdlm 'a ____' --json",
        f"{TRAIN} --out new/flex --from mdlm --method.name flexmdm --data.longer cut",
        "sample new/flex --show --length 6",
        "infill new/flex 'a ____' --flexible --show",
        "score flex '' 'a text'",
        "eval flex short.txt --samples 4 --json",
        "score mdlm 'a text' 'and another'",
        "eval mdlm notes.txt --samples 4 --judge ar --words notes.txt --out new/results.json",
        "eval ar notes.txt --json",
        "eval mdlm notes.txt --samples 0 --limit 40 --profile new/profile.png",
        "accuracy mdlm notes.txt --task infill --count 4",
        "accuracy ar notes.txt --task last-word --count 4 --json",
        "ngram notes.txt --test notes.txt --samples 2 --judge ar --length 9 --infill notes.txt",
        "info mdlm",
        "export mdlm new/model",
        "score new/model --file notes.txt --json",
        "demo --seconds 0.1",
    ]
    script = (
        "import shlex; from partita.commands import main\n"
        f"codes = [main(shlex.split(words)) for words in {verbs}]\n"
        "assert not any(codes), codes"
    )
    result = alone(script, copy)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.fixture(scope="module")
def familiar(place, tmp_path_factory):
    """The files and models that examples speak of."""
    folder = tmp_path_factory.mktemp("familiar")
    for name in ("notes.txt", "more.txt", "test.txt", "candidates.txt", "dump.jsonl.zst"):
        (folder / name).write_text(NOTES)
    (folder / "corpus").mkdir()
    shutil.copytree(place / "mdlm", folder / "runs/notes-mdlm")
    shutil.copytree(place / "ar", folder / "runs/judge")
    result = alone("from partita.commands import main; main(['train', '--print_config'])", folder)
    (folder / "recipe.yaml").write_text(result.stdout)
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_every_example_of_the_help_parses(verb, familiar, monkeypatch, capsys):
    monkeypatch.chdir(familiar)
    assert main([verb, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert help_text.startswith(f"usage: partita {verb}")
    examples = [line.strip() for line in help_text.split("\nexamples:\n")[1].splitlines()]
    assert len(examples) >= 2
    for example in examples:
        command = re.split(r"\s{2,}", example)[0]  # what follows explains it
        before, found, words = command.partition(f"partita {verb}")
        assert found, example
        assert before in ("", "torchrun --nproc-per-node 8 -m "), example
        module = module_of(verb)
        assert module.options(shlex.split(words)) is not None


def test_a_printed_recipe_can_be_given_back(familiar, monkeypatch):
    monkeypatch.chdir(familiar)
    options = importlib.import_module("partita.commands.train").options
    assert options(["--config", "recipe.yaml"]) == options([])
    changed, _ = options(["--config", "recipe.yaml", "--training.seed", "7"])
    assert changed.training.seed == 7
