"""Checkpoints that anybody may have written: `partita import` runs nothing that is in them.

A file gives a model or one clear message, quickly, whatever its pickle claims; and a message means
that nothing was written.
"""

from __future__ import annotations

import builtins
import collections
import io
import os
import pickle
import shutil
import sys
import zipfile
from collections import Counter
from pathlib import Path
from random import Random

import huggingface_hub
import pytest
import safetensors.torch
import torch

from partita.commands import main
from partita.commands.import_model import find_tokenizer
from partita.files.reading import DamagedError
from partita.models.published import importing, pickles
from partita.models.published.importing import import_model
from partita.models.published.pickled_values import OPAQUE
from partita.models.published.planning import ImportOptions
from tests.golden import cases
from tests.support.checkpoints import (
    Claim,
    Numbers,
    entries_of,
    lightning,
    parameters,
    pickled,
    state_of,
    write_archive,
    write_tokenizer,
)
from tests.support.mutation import alter_bytes
from tests.support.supervision import note, outcome

SMALL = "text/mdlm_dit"
USUAL = ["--tokenizer", "tokenizer.json", "--length", "16"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def listing():
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


def refused(capsys, message, *words):
    """One message that begins like this, and nothing written."""
    before = listing()
    code = main(["import", *(words or ("model.ckpt", "model")), *USUAL])
    err = capsys.readouterr().err
    assert (code, err[: len(f"partita: {message}")]) == (2, f"partita: {message}"), err
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert listing() == before


@pytest.fixture(scope="module")
def state():
    return state_of(cases.own(SMALL))


# Pickles that want to run something --------------------------------------------------------------


class Calls:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


ATTACKS = {
    "os.system": Calls(os.system, "touch harm"),
    "eval": Calls(builtins.eval, "open('harm', 'w')"),
    "exec": Calls(builtins.exec, "open('harm', 'w')"),
    "open": Calls(builtins.open, "harm", "w"),
    "touch": Calls(Path.touch, Path("harm")),
    "getattr": Calls(builtins.getattr, Calls(builtins.__import__, "os"), "system"),
    "torch.load": Calls(torch.load, "harm"),
    "rebuild of a rebuild": Calls(torch._utils._rebuild_tensor_v2, Calls(os.mkdir, "harm")),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_calls_in_a_pickle_are_not_made(attack, protocol, state, capsys):
    call = ATTACKS[attack]
    held = {"a": call, "b": [call, (call,)], "c": {"d": call}}
    torch.save(lightning(state, hyper_parameters=held), "model.ckpt", pickle_protocol=protocol)
    assert main(["import", "model.ckpt", "fine", "--method", "mdlm", *USUAL]) == 0
    capsys.readouterr()
    torch.save(lightning(state) | {"state_dict": {"key": call}}, "model.ckpt")
    refused(
        capsys, "file: model.ckpt: state_dict: key is no plain tensor; if you trust it, load it in"
    )
    torch.save({"state_dict": call}, "model.ckpt")
    refused(capsys, "file: model.ckpt holds no state_dict (it holds: state_dict); give a .ckpt of")
    torch.save(call, "model.ckpt")
    refused(capsys, "file: model.ckpt holds no state_dict; give a .ckpt of Lightning")
    assert not Path("harm").exists()


def opcode(*parts):
    """A pickle of protocol 2 by hand."""
    return b"\x80\x02" + b"".join(parts) + b"."


NESTED = b"})" + 200_000 * b"\x85" + b"K\x01s"  # a dictionary's key: tuples in tuples
NODE, INSIDE = b"comegaconf.nodes\nAnyNode\n)\x81", b"}X\x04\x00\x00\x00_val"
DOUBLED = b"}" + b")" + 200 * b"2\x86" + b"K\x01s"  # 2^200 tuples, to whoever would walk them
PROGRAMS = {
    "nothing": b"",
    "no end": b"\x80\x02}",
    "no value": opcode(),
    "an unknown instruction": opcode(b"\xff"),
    "an instruction for buffers": opcode(b"\x97"),
    "a name without persons": opcode(b"Pname\n"),
    "a mark that is not there": opcode(b"]e"),
    "a mark above the stack": opcode(b"]K\x01(00e"),
    "an odd dictionary": opcode(b"}(K\x01u"),
    "a memory of nothing": opcode(b"h\x07"),
    "a place far away": opcode(b"}p99999999999999999999\n"),
    "a text longer than the file": opcode(b"X\xff\xff\xff\x7f"),
    "bytes of many gigabytes": opcode(b"\x96\x00\x00\x00\x00\x0a\x00\x00\x00"),
    "a number of many digits": opcode(b"L" + b"9" * 100_000 + b"L\n"),
    "a text that is none": opcode(b"X\x02\x00\x00\x00\xff\xff"),
    "endless work": b"\x80\x02]" + 100_000 * b"0]",
    "too much": opcode(b"X\xff\xff\xff\x00" + bytes(0xFFFFFF)),
}
HARMLESS = {
    "tuples in tuples": opcode(NESTED),
    "more tuples than atoms": opcode(DOUBLED),
    "configurations in configurations": opcode(200_000 * (NODE + INSIDE), b"N", 200_000 * b"sb"),
    "a configuration in itself": opcode(NODE, b"q\x00", INSIDE, b"h\x00sb"),
    "state for a configuration that is none": opcode(NODE, b"K\x01b"),
    "a list in itself": opcode(b"]q\x00h\x00a"),
    "a dictionary in itself": opcode(b"}q\x00X\x01\x00\x00\x00ah\x00s"),
    "a far place": opcode(b"}r\xff\xff\xff\xff"),
    "state for a call": opcode(b"ctorch._utils\n_rebuild_tensor_v2\n}b"),
    "a call of a type": opcode(b"ctorch\nFloatStorage\n)R"),
    "an old instance": opcode(b"(ios\nsystem\n"),
    "an object": opcode(b"(cos\nsystem\nX\x02\x00\x00\x00lso"),
    "an extension": opcode(b"\x82\x01)R"),
    "keywords": b"\x80\x04\x8c\x02os\x8c\x06system\x93)}\x92.",
    "a name of numbers": opcode(b"K\x01K\x02\x93"),
    "arguments that are none": opcode(b"ccollections\nOrderedDict\nK\x01R"),
    "sets": b"\x80\x04(\x8f(K\x01K\x02\x90K\x03\x91.",
    "a name for nothing": opcode(b"K\x01Q"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_make_no_sense(name, capsys, monkeypatch):
    monkeypatch.setattr(pickles, "MOST_STEPS", 100_000)
    monkeypatch.setattr(pickles, "LARGEST", 1 << 24)
    write_archive(Path("model.ckpt"), PROGRAMS[name])
    message = "data.pkl has 167" if name == "too much" else "its pickle "
    problem = "model.ckpt is damaged or not what its name says"
    refused(capsys, f"file: {problem}: {message}")


@pytest.mark.parametrize("name", HARMLESS)
def test_programs_that_make_sense_to_python_alone(name, capsys):
    write_archive(Path("model.ckpt"), HARMLESS[name])
    refused(capsys, "file: model.ckpt holds no state_dict")


def test_what_a_pickle_becomes():
    plain = {"a": [1, -5, 2**40, 1.5, True, None], "b": ("x", ()), "c": {"d": {}}}
    for protocol in range(6):
        assert pickles.loads(pickled(plain, protocol)) == plain
    odd = {"a": {1: 2, "x": 3}, "b": {4}, "c": collections.Counter("x"), "d": torch.device("cpu")}
    expected = {"a": {"x": 3}, "b": OPAQUE, "c": OPAQUE, "d": OPAQUE}
    for protocol in range(6):
        assert pickles.loads(pickled(odd, protocol)) == expected
    with pytest.raises(DamagedError, match="no sense"):
        pickles.loads(b"garbage")


# Tensors that want to read elsewhere -------------------------------------------------------------

OUTSIDE = "a tensor in it lies outside of its storage"
TWICE = "a tensor in it uses the same number twice"
SHAPE = "a tensor in it has a shape that makes no sense"
SIZE = "data/0 has not the size that its tensors have"
CLAIMS = {
    "an offset beyond the end": (Claim(offset=1), OUTSIDE),
    "a negative offset": (Claim(offset=-1), SHAPE),
    "a negative stride": (Claim(stride=(-3, 1)), TWICE),
    "a stride of nothing": (Claim(stride=(0, 1)), TWICE),
    "rows that overlap": (Claim(stride=(2, 1)), TWICE),
    "a long stride": (Claim(stride=(4, 1)), OUTSIDE),
    "a negative shape": (Claim(shape=(-2, 3)), SHAPE),
    "an empty shape": (Claim(shape=(0, 3)), SHAPE),
    "a huge shape": (Claim(shape=(2**40, 3)), OUTSIDE),
    "a huge shape of one number": (Claim(shape=(2**40, 3), stride=(0, 0)), TWICE),
    "numbers beyond all machines": (Claim(shape=(10**30, 10**30)), TWICE),
    "many dimensions": (Claim(shape=(1,) * 40, stride=(1,) * 40), SHAPE),
    "more strides than sizes": (Claim(stride=(3, 1, 1)), SHAPE),
    "a larger storage": (Claim(storage=Numbers(elements=600)), SIZE),
    "a smaller storage": (Claim(storage=Numbers(elements=5)), SIZE),
    "a negative storage": (Claim(storage=Numbers(elements=-6)), SIZE),
    "wider numbers": (Claim(storage=Numbers(kind=torch.DoubleStorage)), SIZE),
    "a storage that is missing": (Claim(storage=Numbers("1")), "data/1 is missing"),
    "the pickle itself": (Claim(storage=Numbers("../data.pkl")), "data/../data.pkl is missing"),
}
NO_TENSORS = {
    "a shape of fractions": Claim(shape=(2.0, 3.0)),
    "a shape of truths": Claim(shape=(True, True)),
    "a list for a shape": Claim(shape=[2, 3]),
    "an offset in words": Claim(offset="0"),
    "a storage by number": Claim(storage=Numbers(0)),
    "a storage of words": Claim(storage=Numbers(elements="6")),
    "a storage of no type": Claim(storage=Numbers(kind=os.system)),
    "no storage": Claim(storage=None),
}


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("where", ["state_dict", "ema"])
def test_tensors_never_reach_beyond_their_numbers(name, where, capsys):
    claim, problem = CLAIMS[name]
    content = {"state_dict": {"a": Claim()}, "ema": {"shadow_params": []}}
    if where == "state_dict":
        content["state_dict"]["b"] = claim
    else:
        content["ema"]["shadow_params"].append(claim)
    write_archive(Path("model.ckpt"), pickled(content))
    refused(capsys, f"file: model.ckpt is damaged or not what its name says: {problem}")


@pytest.mark.parametrize("name", NO_TENSORS)
def test_what_only_looks_like_a_tensor(name, capsys):
    write_archive(Path("model.ckpt"), pickled({"state_dict": {"a": NO_TENSORS[name]}}))
    refused(capsys, "file: model.ckpt: state_dict: a is no plain tensor")


def test_tensors_that_share_their_numbers_do_not_fill_the_memory(state, capsys):
    """Three hundred blocks, each with the weights of the first."""
    content = lightning(state, prefix="")
    for name in [name for name in state if name.startswith("blocks.0.")]:
        for number in range(2, 300):
            again = name.replace("blocks.0.", f"blocks.{number}.")
            content["state_dict"][again] = content["state_dict"][name]
    torch.save(content, "model.ckpt")
    refused(capsys, "file: model.ckpt: its tensors claim more bytes than the file has")


# Archives that are none --------------------------------------------------------------------------

GOOD = pickled({"state_dict": {"a": Claim()}})


def test_a_file_that_is_cut_short(state, capsys):
    torch.save(lightning(state), "model.ckpt")
    whole = Path("model.ckpt").read_bytes()
    for share in (0.01, 0.3, 0.9, 0.999):
        Path("model.ckpt").write_bytes(whole[: int(share * len(whole))])
        refused(capsys, "file: model.ckpt is damaged or not what its name says: it is cut short or")


def test_a_number_that_was_changed(state, capsys):
    torch.save(lightning(state), "model.ckpt")
    whole, number = Path("model.ckpt").read_bytes(), state["output_layer.linear.bias"].numpy()
    assert whole.count(number.tobytes()) == 1
    Path("model.ckpt").write_bytes(whole.replace(number.tobytes(), (number + 1).tobytes()))
    problem = "model.ckpt is damaged or not what its name says: data/"
    refused(capsys, f"file: {problem}")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_archives(compression, capsys):
    bomb = bytes(1 << 24)
    write_archive(Path("model.ckpt"), GOOD, compression, **{"data/0": bomb})
    problem = "model.ckpt is damaged or not what its name says"
    refused(capsys, f"file: {problem}: byteorder is compressed or encrypted, which torch.save")


def with_entry(name, data, compression=0):
    write_archive(Path("model.ckpt"), GOOD)
    with zipfile.ZipFile("model.ckpt", "a", compression) as archive:
        archive.writestr(name, data)


def overwritten(name, at, data):
    """A directory of the archive that says something else about an entry."""
    write_archive(Path("model.ckpt"), GOOD)
    whole = bytearray(Path("model.ckpt").read_bytes())
    begin = whole.index(b"PK\x01\x02", whole.rindex(name.encode()) - 60)
    whole[begin + at : begin + at + len(data)] = data
    Path("model.ckpt").write_bytes(bytes(whole))


def double_names():
    with pytest.warns(UserWarning, match="Duplicate"):
        with_entry("archive/data/0", bytes(24))


ARCHIVES = {
    "two pickles": (lambda: with_entry("more/data.pkl", b""), "there is no data.pkl in it, so"),
    "one name twice": (double_names, "two files in it have the same name"),
    "numbers of other machines": (
        lambda: write_archive(Path("model.ckpt"), GOOD, byteorder=b"big"),
        "its numbers have another byte order",
    ),
    "a long byte order": (
        lambda: write_archive(Path("model.ckpt"), GOOD, byteorder=bytes(1000)),
        "byteorder has 1000 bytes",
    ),
    "an entry that is encrypted": (
        lambda: overwritten("archive/data/0", 8, b"\x01\x00"),
        "data/0 is compressed or encrypted",
    ),
    "an entry that lies elsewhere": (
        lambda: overwritten("archive/data.pkl", 42, b"\x07\x00\x00\x00"),
        "data.pkl was changed or cut short",
    ),
    "an entry beyond the end": (
        lambda: overwritten("archive/data.pkl", 42, b"\xff\xff\xff\x0f"),
        "data.pkl was changed or cut short",
    ),
    "an entry of any size": (
        lambda: overwritten("archive/data.pkl", 20, b"\xff\xff\xff\x0f\xff\xff\xff\x0f"),
        "data.pkl has 268435455 bytes, which no model needs",
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_odd_archives(name, capsys):
    make, problem = ARCHIVES[name]
    make()
    refused(capsys, f"file: model.ckpt is damaged or not what its name says: {problem}")


NEITHER = "model.ckpt is neither a zip archive of torch.save nor safetensors"


def test_files_of_other_kinds(state, capsys):
    torch.save(lightning(state), "model.ckpt", _use_new_zipfile_serialization=False)
    refused(capsys, f"file: {NEITHER}; if you trust it, load it in PyTorch and save its tensors as")
    for data in (b"", b"PK", b"# some text\n", bytes(1000)):
        Path("model.ckpt").write_bytes(data)
        refused(capsys, f"file: {NEITHER}; give a .ckpt of Lightning or a .safetensors file")
    Path("model.ckpt").write_bytes(pickle.dumps({"state_dict": {}}))
    refused(capsys, f"file: {NEITHER}; if you trust it, load it in PyTorch and save its tensors as")
    torch.save({**state, "note": "not a tensor"}, "model.ckpt")
    refused(capsys, "file: model.ckpt holds no state_dict (it holds: vocab_embed.embedding, ")
    with zipfile.ZipFile("model.ckpt", "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    refused(capsys, "file: model.ckpt is damaged or not what its name says: there is no data.pkl")
    safetensors.torch.save_file(state, "whole.safetensors")
    data = Path("whole.safetensors").read_bytes()
    Path("model.ckpt").write_bytes(data[:-100])
    refused(capsys, "file: model.ckpt is damaged or not what its name says: it is no safetensors")


# Damage ------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(place, monkeypatch):
    """A small checkpoint, what is in it, and how it is read while everything is watched."""
    case = cases.own("text/pgm_samplers")
    state = state_of(case)
    average = [state[name] for name in parameters(state)]
    torch.save(lightning(state, average, hyper_parameters={"a": Path("b")}), "whole.ckpt")
    monkeypatch.setattr(importing, "environment", lambda _: {})  # reads where the source stands
    tokenizer = find_tokenizer("tokenizer.json")
    inside = place / "model.ckpt"

    def attempt():
        return import_model(inside, tokenizer, ImportOptions(length=8), tokenizer_name="x")

    shutil.copy("whole.ckpt", inside)
    assert attempt() is not None  # and what is loaded on first use is loaded
    sys.addaudithook(note)  # it cannot be taken off again
    return entries_of(Path("whole.ckpt")), Path("whole.ckpt").read_bytes(), attempt


def flip(random, data):
    """One byte is another one."""
    at = random.randrange(len(data))
    return data[:at] + random.randbytes(1) + data[at + 1 :]


def test_damaged_checkpoints_are_refused_or_harmless(place, damaged):
    entries, whole, attempt = damaged
    outcomes = Counter()
    for seed in range(400):
        random = Random(seed)
        alter = random.choice([alter_bytes, flip])
        if seed % 2:
            Path("model.ckpt").write_bytes(alter(random, whole))
        else:
            program = alter(random, entries["data.pkl"])
            write_archive(Path("model.ckpt"), program, **(entries | {"data.pkl": program}))
        outcomes[seed % 2, outcome(place, attempt) is not None] += 1
    for kind in ((0, True), (0, False), (1, True), (1, False)):
        assert outcomes[kind] > 10, outcomes  # the damage is neither hopeless nor harmless


def test_the_attacks_would_have_worked():
    """With Python's own unpickler; otherwise these tests would say nothing."""
    pickle.load(io.BytesIO(pickle.dumps(ATTACKS["touch"])))
    assert Path("harm").exists()
