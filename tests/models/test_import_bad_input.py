"""Bad input to `partita import`: exit code 2, one message that names it, and nothing written."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path

import huggingface_hub
import pytest
import torch

from partita.commands import import_model as verb
from partita.commands import main
from tests.golden import cases
from tests.support.checkpoints import lightning, other, parameters, state_of, write_tokenizer

USUAL = "--tokenizer tokenizer.json --length 16"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Checkpoints of an MDLM (with an average and without) and of a PGM."""
    folder = tmp_path_factory.mktemp("files")
    mdlm, pgm = (state_of(cases.own(f"text/{name}")) for name in ("mdlm_dit", "pgm_samplers"))
    average = [other(mdlm)[name] for name in parameters(mdlm)]
    torch.save(lightning(mdlm, average), folder / "mdlm.ckpt")
    torch.save(lightning(mdlm), folder / "raw.ckpt")
    torch.save(lightning(pgm), folder / "pgm.ckpt")
    (folder / "notes.txt").write_text("some text")
    (folder / "hollow").mkdir()
    write_tokenizer(folder / "tokenizer.json")
    write_tokenizer(folder / "large.json", 37)
    return folder


@pytest.fixture
def here(files, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return files


def listing(folder):
    found = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(name for name in found if not name.startswith("changed"))


def refused(capsys, folder, words, message):
    before = listing(folder)
    code = main(["import", *shlex.split(words)])
    err = capsys.readouterr().err
    assert (code, err[: len(f"partita: {message}")]) == (2, f"partita: {message}"), err
    assert err.count("\n") == 1, err
    assert listing(folder) == before


WORDS = {
    "": "file, out: must be given; partita import --help",
    "mdlm.ckpt": "out: must be given; partita import --help",
    "'' new": "file: is empty; name a file",
    "mdlm.ckpt ''": "out: is empty; name a folder",
    "nowhere.ckpt new": "file: nowhere.ckpt does not exist; check the name, or give hf:...",
    "notes.txt new": "file: notes.txt is neither a zip archive of torch.save nor safetensors; give",
    "hollow new": "file: hollow is no file; give a .ckpt of Lightning or a .safetensors file",
    "tokenizer.json new": "file: tokenizer.json is ",
    "mdlm.ckpt hollow": "out: hollow exists already; choose another folder",
    "mdlm.ckpt notes.txt": "out: notes.txt exists already; choose another folder",
    "mdlm.ckpt notes.txt/new": "out: notes.txt is no folder; choose another place",
    "mdlm.ckpt new more": "'more': is one word too many; partita import --help",
    "mdlm.ckpt new --wights raw": "--wights: unknown option; did you mean --weights?",
    "mdlm.ckpt new --weights best": "--weights: unknown name 'best'; known: auto, ema, raw",
    "raw.ckpt new --weights ema": "--weights: the file holds no moving average (ema); give --weig",
    "mdlm.ckpt new --heads 0": "--heads: must be at least 1, got 0",
    "mdlm.ckpt new --heads some": "--heads: must be a whole number, got 'some'",
    "mdlm.ckpt new --heads 4": "--heads: is 4, but the rotary frequencies in the file are those of",
    "mdlm.ckpt new --length 0": "--length: must be at least 1, got 0",
    "mdlm.ckpt new --length 99999999999": "--length: must be at most 16777216, got 99999999999",
    "mdlm.ckpt new --length long": "--length: must be a whole number, got 'long'",
    "pgm.ckpt new --queries max": "--queries: unknown name 'max'; known: positions, learned, mean",
    "mdlm.ckpt new --conditioning time": "--conditioning: unknown name 'time'; known: none, sigma",
    "pgm.ckpt new --conditioning sigma": (
        "--conditioning: is 'sigma', but a model of pgm never takes the time as an input; leave"
    ),
    "mdlm.ckpt new --method best": "--method: unknown name 'best'; known: mdlm, pgm, ar\n",
    "mdlm.ckpt new --method ''": "--method: unknown name ''; known: mdlm, pgm, ar\n",
    "mdlm.ckpt new --method sedd": (
        "--method: models of SEDD, whose network gives log scores at a noise level instead of "
        "logits, cannot be imported; known: mdlm, pgm, ar\n"
    ),
    "mdlm.ckpt new --method pgm": (
        "--method: is 'pgm', but its tensors are those of a DIT with time layers, as MDLM, SEDD "
        "and Duo have it; leave it out\n"
    ),
    "pgm.ckpt new --method mdlm": (
        "--method: is 'mdlm', but its tensors are those of the network of PGM; leave it out\n"
    ),
    "mdlm.ckpt new --conditioning sigma": (
        "--conditioning: is 'sigma', but by its hyper-parameters (time_conditioning) the model was "
        "trained without the time; leave it out\n"
    ),
    "mdlm.ckpt new --skip teacher.": (
        "--skip: no key begins with 'teacher.'; keys begin with backbone"
    ),
    "mdlm.ckpt new --skip backbone.,": "--skip: names an empty prefix; leave it out",
    "raw.ckpt new --skip backbone.": "file: raw.ckpt: has no 'vocab_embed.embedding': not a DIT\n",
    "raw.ckpt new --skip sigma_map.": "file: raw.ckpt: holds blocks.0.modulation.weight, whi",
    "mdlm.ckpt new --skip sigma_map.mlp.2": "file: mdlm.ckpt: its ema averages 30 tensors, but th",
    "raw.ckpt new --skip sigma_map.mlp.2": "file: raw.ckpt: lacks what we call conditioning.time_",
    "raw.ckpt new --skip blocks.0.norm1": "file: raw.ckpt: lacks what we call blocks.0.norm_atten",
    "raw.ckpt new --skip blocks.0.": "file: raw.ckpt: has no 'blocks.0.mlp.0.weight': not a DIT",
    "raw.ckpt new --skip vocab_embed.": "file: raw.ckpt: has no 'vocab_embed.embedding': not a D",
    "mdlm.ckpt new --tokenizer large.json": (
        "--tokenizer: large.json has 37 tokens, but the model has 37 ids: 36 and a mask; a mask "
    ),
    "mdlm.ckpt new --tokenizer notes.txt": "--tokenizer: notes.txt: this is no tokenizer.json",
    "mdlm.ckpt new --tokenizer gpt9": "--tokenizer: unknown name 'gpt9'; give gpt2, the path",
    "mdlm.ckpt new --tokenizer bytes": "--tokenizer: 'bytes' is no tokenizer of a published model",
    "mdlm.ckpt new --tokenizer nobody/nothing": (
        "--tokenizer: 'nobody/nothing' is no file here, and as a name on the hub: "
    ),
    "mdlm.ckpt new --tokenizer hollow": "--tokenizer: unknown name 'hollow'; give gpt2",
    "hf:mdlm.ckpt new": "file: cannot read 'hf:mdlm.ckpt'; write hf:OWNER/REPOSITORY/FILE",
    "hf:a/b new": "file: cannot read 'hf:a/b'; write hf:OWNER/REPOSITORY/FILE",
    "hf:a/b/c.ckpt@ new": "file: cannot read 'hf:a/b/c.ckpt@'; write hf:OWNER/REPOSITORY/FILE",
    "hf:nobody/nothing/x.ckpt new": "file: the hub does not give x.ckpt of nobody/nothing: ",
}


@pytest.mark.parametrize("words", WORDS)
def test_bad_words(words, here, capsys):
    flags = USUAL if "--tokenizer" not in words else "--length 16"
    later = words if "--length" in words else f"{words} {flags}"
    refused(capsys, here, later if words else "", WORDS[words])


def test_a_file_that_is_refused_needs_no_tokenizer(here, capsys):
    """Nobody has to fetch GPT-2's to read what is wrong with the file."""
    refused(capsys, here, "notes.txt new", WORDS["notes.txt new"])


def test_models_of_this_library_are_no_imports(here, exported, capsys):
    run = exported.parent / "run"
    message = "is a model of this library already; give"
    for path in (exported, exported / "model.safetensors", run):
        folder = path if path.is_dir() else path.parent
        refused(capsys, here, f"{path} new", f"file: {path} {message} {folder} to any other verb\n")


def test_what_is_quick_to_check_comes_first(here, capsys, monkeypatch):
    """A file of gigabytes is neither fetched nor read for a flag that cannot be."""
    monkeypatch.setattr(verb, "fetch", lambda *_, **__: pytest.fail("fetched"))
    monkeypatch.setattr(verb, "import_model", lambda *_, **__: pytest.fail("read"))
    for file in ("mdlm.ckpt", "hf:a/b/c.ckpt"):
        refused(capsys, here, f"{file} hollow {USUAL}", "out: hollow exists already")
        refused(capsys, here, f"{file} new --tokenizer notes.txt", "--tokenizer: notes.txt: this")
        refused(capsys, here, f"{file} new --weights some", "--weights: unknown name")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to folders that are closed to others")
def test_a_folder_that_is_closed_to_writing(here, capsys):
    Path("closed").mkdir(mode=0o555)
    refused(capsys, here, f"mdlm.ckpt closed/new {USUAL}", "out: closed is closed to writing")


# Weights that are not those of a model -----------------------------------------------------------


def changed(name, value):
    def change(state):
        state[name] = value(state[name]) if callable(value) else value

    return change


def without(name):
    return lambda state: state.pop(name)


HEAD = "output_layer.linear.bias"
STATES = {
    "a key too many": (
        changed("lm_head.weight", torch.ones(2)),
        "lm_head.weight: no key of the reference DIT; --skip PREFIX leaves keys out on purpose",
    ),
    "many keys too many": (
        lambda state: state.update({f"teacher.{n}": torch.ones(2) for n in range(9)}),
        "teacher.0, teacher.1, teacher.2 and 6 more: no key of the reference DIT; --skip PREFIX",
    ),
    "a block too many": (
        changed("blocks.7.norm1.weight", torch.ones(32)),
        "lacks what we call blocks.2.norm_attention.weight, blocks.2.",
    ),
    "a key that is missing": (without(HEAD), "lacks what we call head.bias"),
    "keys of another kind of query": (
        changed("decoder.group_swap.base_embedding", torch.ones(1, 32)),
        "blocks.0.norm1.weight, blocks.0.attn_qkv.weight, blocks.0.attn_out.weight and 17 more: ",
    ),
    "another shape": (
        changed(HEAD, torch.ones(36)),
        "what we call head.bias has the shape [36], expected [37]",
    ),
    "a dimension more": (
        changed("vocab_embed.embedding", lambda tensor: tensor[None].clone()),
        "vocab_embed.embedding has another shape than a DIT's",
    ),
    "whole numbers": (
        changed(HEAD, torch.ones(37, dtype=torch.int64)),
        f"{HEAD} is of torch.int64, which is no type of weights",
    ),
    "no number": (
        changed(HEAD, torch.full((37,), math.nan)),
        f"{HEAD} holds a NaN or an infinite number",
    ),
    "an infinite number": (
        changed(HEAD, torch.full((37,), math.inf)),
        f"{HEAD} holds a NaN or an inf",
    ),
    "other rotary frequencies": (
        changed("rotary_emb.inv_freq", lambda tensor: tensor**1.2),
        "its rotary frequencies are not those of base 10000",
    ),
    "too many rotary frequencies": (
        changed("rotary_emb.inv_freq", torch.ones(9)),
        "its rotary frequencies do not fit its width 32",
    ),
    "one name under two prefixes": (
        lambda state: state.update({f"module.{HEAD}": state[HEAD]}),
        f"holds {HEAD} under two prefixes; leave one of them out with --skip PREFIX",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_other_weights(name, here, capsys):
    change, message = STATES[name]
    state = state_of(cases.own("text/mdlm_dit"))
    change(state)
    torch.save(lightning(state), "changed.ckpt")
    refused(capsys, here, f"changed.ckpt new {USUAL}", f"file: changed.ckpt: {message}")


AVERAGES = {
    "one too few": (
        lambda average: average.pop(),
        "its ema averages 29 tensors, but the",
    ),
    "one too many": (
        lambda average: average.append(average[0]),
        "its ema averages 31 tensors",
    ),
    "two exchanged": (
        lambda average: average.insert(0, average.pop()),
        "its ema has the shape [64] for vocab_embed.embedding, whose shape is [37, 32]; give --w",
    ),
    "no tensor": (lambda average: average.append(Path("x")), "ema: shadow_params[30] is no plain"),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_other_averages(name, here, capsys):
    change, message = AVERAGES[name]
    state = state_of(cases.own("text/mdlm_dit"))
    average = [state[name] for name in parameters(state)]
    change(average)
    torch.save(lightning(state, average), "changed.ckpt")
    refused(capsys, here, f"changed.ckpt new {USUAL}", f"file: changed.ckpt: {message}")
    assert (
        main(["import", "changed.ckpt", f"changed {name}", "--weights", "raw", *USUAL.split()]) == 0
    )


@pytest.mark.parametrize("average", [[], {"shadow_params": {}}, {"decay": 0.9}])
def test_averages_that_are_none(average, here, capsys):
    state = state_of(cases.own("text/mdlm_dit"))
    torch.save(lightning(state, ema=None) | {"ema": average}, "changed.ckpt")
    message = "file: the ema of changed.ckpt holds no list shadow_params; give --weights raw"
    refused(capsys, here, f"changed.ckpt new {USUAL}", message)
