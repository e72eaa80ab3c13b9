"""Saved models: they come back bit by bit, and whatever is wrong with their files is refused."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import safetensors.torch
import torch

import partita
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.config.sampling import SamplingOptions
from partita.errors import InputError
from partita.files import format
from partita.files.atomic import remove_folder, remove_partial, sha256, whole_folder, write_whole
from partita.models import checkpoints, trained
from partita.models.find import find
from partita.models.text_model import TextModel
from partita.models.trained import load
from tests.support.models import TOKENIZERS, edit, seal, tiny


def same(a, b):
    """Two models with equal weights (to the bit), tokenizers, recipes and histories."""
    mine, others = a.method.state_dict(), b.method.state_dict()
    assert list(mine) == list(others)
    for name, tensor in mine.items():
        assert tensor.dtype == others[name].dtype
        assert torch.equal(tensor.view(torch.uint8), others[name].view(torch.uint8)), name
    assert a.tokenizer.describe() == b.tokenizer.describe()
    assert a.recipe == b.recipe
    assert a.provenance == b.provenance
    return True


@pytest.fixture
def folder(tmp_path):
    """A checkpoint: a model with everything that the format knows."""
    place = tmp_path / "model"
    state = {"step": 3, "seconds": 1.5, "metrics": {"valid_bits": 2.5}}
    training = {"weights.a": torch.arange(4.0), "optimiser.0.step.a": torch.tensor(3.0)}
    contents = tiny().contents() | {format.TRAINING: training, format.STATE: state}
    format.write(place, contents, "a card")
    return place


def refused(path, *words):
    """Loading is refused with an error that holds these words."""
    with pytest.raises(InputError) as caught:
        load(path)
    for word in words:
        assert str(word) in str(caught.value)


# The way there and back --------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", list(TOKENIZERS))
@pytest.mark.parametrize("method", ["mdlm", "md4", "ar"])
def test_what_is_saved_comes_back(method, tokenizer, tmp_path):
    model = tiny(method, tokenizer)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", device="cpu")
    assert same(model, again)
    assert not again.method.training
    drawn = model.sample(3, seed=5)
    assert again.sample(3, seed=5) == drawn
    assert again.sample(3, seed=6) != drawn


def test_every_option_of_a_recipe_comes_back(tmp_path):
    model = tiny(sampling=SamplingOptions("confidence", 4, 0.5, 3, 0.9, {"counts": "cosine"}))
    method = MethodOptions("mdlm", "polynomial", {"exponent": 3}, "discrete", {"steps": 9}, "none")
    recipe = replace(model.recipe, method=method)
    built = recipe.method.build(recipe.network, model.tokenizer.vocab_size)
    TextModel(built, model.tokenizer, recipe).save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.recipe == recipe
    assert again.method.corruption.steps == 9
    assert again.method.schedule.exponent == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_come_back(dtype, tmp_path):
    """With the same values; half precision is widened, since it is a way to store weights."""
    model = tiny()
    model.method.to(dtype)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    model.method.to(torch.float32 if dtype.itemsize == 2 else dtype)
    assert same(model, again)


def test_what_a_section_leaves_out_is_as_in_a_new_recipe():
    wide = {"network": {"width": 64}}
    assert Recipe.from_dict(wide).network == replace(Recipe().network, width=64)
    assert Recipe.from_dict({}) == Recipe()
    assert Recipe.from_dict(Recipe().to_dict()) == Recipe()


def test_the_file_may_change_under_a_loaded_model(tmp_path):
    tiny().save(tmp_path / "model")
    model = load(tmp_path / "model")
    path = tmp_path / "model" / format.WEIGHTS
    path.write_bytes(b"\1" * path.stat().st_size)  # in place: a mapping of the file would see it
    assert same(model, tiny())


def test_names_are_exported():
    assert partita.load is trained.load
    assert partita.TextModel is TextModel
    assert partita.Recipe is Recipe


# Whole or not at all -----------------------------------------------------------------------------

BROKEN = {format.CONFIG: {}, format.WEIGHTS: {"a": "no tensor"}}


def test_an_error_in_the_middle_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="expected torch"):
        format.write(tmp_path / "model", BROKEN)
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_middle_leaves_what_was_there(tmp_path):
    tiny().save(tmp_path / "model")
    with pytest.raises(ValueError, match="expected torch"):
        format.write(tmp_path / "model", BROKEN)
    assert same(load(tmp_path / "model"), tiny())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_is_replaced_whole(folder):
    other = tiny("ar")
    other.save(folder)
    assert same(load(folder), other)
    assert not (folder / format.TRAINING).exists()  # of the checkpoint that was there
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["thesis.tex", ".git", "checkpoints"])
def test_other_work_is_not_replaced(folder, name):
    (folder / name).mkdir()
    with pytest.raises(InputError, match=name):
        tiny("ar").save(folder)
    assert same(load(folder), tiny())


def test_a_file_is_not_replaced(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match="notes is a file"):
        tiny().save(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"


def test_saving_to_the_folder_one_is_in_and_through_a_link(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    tiny().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert same(load(tmp_path / "real"), tiny())
    monkeypatch.chdir(tmp_path / "real")
    tiny("ar").save(".")
    assert same(load(tmp_path / "real"), tiny("ar"))


def test_a_model_can_be_saved_over_the_file_it_was_read_from(tmp_path):
    tiny().save(tmp_path / "model")
    for _ in range(2):
        load(tmp_path / "model").save_pretrained(tmp_path / "model")
    assert same(load(tmp_path / "model"), tiny())


def test_a_killed_writer_leaves_nothing_under_the_name(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from partita.files.atomic import whole_folder\n"
        "with whole_folder(Path(sys.argv[1])) as partial:\n"
        "    (partial / 'half').write_text('x'); os._exit(9)"
    )
    place = tmp_path / "model"
    assert subprocess.run([sys.executable, "-c", code, place], check=False).returncode == 9
    left, lock = sorted(tmp_path.iterdir())
    assert left.name.startswith("model.partial-")
    assert lock.name == f"{left.name}.lock"
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_process_of_the_same_number_left_is_no_hindrance(tmp_path):
    """In a container every process may have number 1."""
    left = tmp_path / f"model.partial-{os.getpid()}"
    for path in (left, tmp_path / f"{left.name}-old"):
        path.mkdir()
        (path / "half").write_text("x")
    (tmp_path / "model").mkdir()
    with whole_folder(tmp_path / "model") as partial:
        (partial / "all").write_text("y")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["all"]


def test_a_folder_that_cannot_take_its_name_leaves_the_old_one(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("x")
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "model") as partial:
        shutil.rmtree(partial)
    assert (tmp_path / "model" / "old").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_write_whole(tmp_path):
    path = tmp_path / "file"
    write_whole(path, "ä")
    assert path.read_bytes() == "ä".encode()
    with path.open("rb") as reader:
        write_whole(path, b"new")
        assert reader.read() == "ä".encode()  # who was reading goes on with what there was
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_removal(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "f.partial-1").write_text("x")
    (tmp_path / "l.partial-1").symlink_to(tmp_path / "kept")
    for name in ("gone", "link", "never there"):
        remove_folder(tmp_path / name)
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_text() == "x"


# Damage ------------------------------------------------------------------------------------------

# A text's tokenizer has no tensors; for those of images see tests/models/test_image_models.py.
EVERY = (*(name for name in format.KNOWN if name != format.TOKENIZER_TENSORS), format.MANIFEST)


@pytest.mark.parametrize("name", EVERY)
def test_files_cut_short_are_refused_by_name(folder, name):
    data = (folder / name).read_bytes()
    for size in (0, 1, 8, len(data) // 2, len(data) - 1):
        (folder / name).write_bytes(data[:size])
        refused(folder, folder / name)
    (folder / name).write_bytes(data)
    assert same(load(folder), tiny())


@pytest.mark.parametrize("name", EVERY)
def test_changed_bytes_are_refused(folder, name):
    data = (folder / name).read_bytes()
    for place in range(0, len(data), max(1, len(data) // 12)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        (folder / name).write_bytes(flipped)
        # A wrong byte in the manifest may be one of another file's checksum.
        refused(folder, folder if name == format.MANIFEST else folder / name)
    for longer in (data + b"\0", b"\0" + data):
        (folder / name).write_bytes(longer)
        refused(folder, folder / name)


@pytest.mark.parametrize("name", EVERY)
def test_missing_files_are_refused_by_name(folder, name):
    (folder / name).unlink()
    refused(folder, folder, name, "missing")


@pytest.mark.parametrize("name", EVERY)
def test_a_folder_in_place_of_a_file_is_refused(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, folder)


@pytest.mark.parametrize("name", ["../evil", "/etc/hostname", "evil.py", "", ".", "model.pt"])
def test_a_manifest_names_files_of_the_format_alone(folder, name):
    (folder.parent / "evil").write_text("x")
    edit(folder / format.MANIFEST, lambda manifest: manifest["checksums"].update({name: "0"}))
    refused(folder, folder / format.MANIFEST, "unknown file", repr(name))


def test_a_manifest_cannot_leave_files_out(folder):
    for name in format.REQUIRED:
        edit(folder / format.MANIFEST, lambda manifest, n=name: manifest["checksums"].pop(n))
        refused(folder, folder / format.MANIFEST, "lacks checksums")
        edit(
            folder / format.MANIFEST, lambda manifest, n=name: manifest["checksums"].update({n: 0})
        )
        refused(folder, "was changed")
        seal(folder)


@pytest.mark.parametrize("version", [0, 3, -1, 10**30, "1", 1.0, 1.5, None, True, [1], {"a": 1}])
def test_other_versions_are_refused_by_number(folder, version):
    edit(folder / format.MANIFEST, lambda manifest: manifest.update(format=version))
    refused(folder, f"has format {version!r}", "reads up to format 2")


def test_newer_versions_are_told_from_older_ones(folder):
    edit(folder / format.MANIFEST, lambda manifest: manifest.update(format=3))
    refused(folder, "update partita")
    edit(folder / format.MANIFEST, lambda manifest: manifest.update(format=0))
    refused(folder, "save it again")
    edit(folder / format.MANIFEST, lambda manifest: manifest.pop("format"))
    refused(folder, "has format None")


@pytest.mark.parametrize("kind", [None, "partita tokens", 1, ["partita model"]])
def test_manifests_of_another_kind_are_refused(folder, kind):
    edit(folder / format.MANIFEST, lambda manifest: manifest.update(kind=kind))
    refused(folder, folder / format.MANIFEST, "is not of a partita model")


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{", '{"a": 1}x', "[" * 10**5, "\xff\xfe"])
@pytest.mark.parametrize("name", [name for name in EVERY if name.endswith(".json")])
def test_what_is_no_json_object_is_refused_by_name(folder, name, text):
    (folder / name).write_text(text)
    if name != format.MANIFEST:
        seal(folder)
    if name != format.STATE:  # which no model needs
        refused(folder, folder / name)
    with pytest.raises(InputError, match=name):
        format.read_json(folder / name)


def test_a_file_of_absurd_size_is_refused_unread(folder):
    os.truncate(folder / format.MANIFEST, 1 << 40)  # a hole: the disk does not notice
    refused(folder, folder / format.MANIFEST, "too large")


def test_sizes_come_from_the_header(folder):
    path = folder / format.WEIGHTS
    expected = {name: tensor.numel() for name, tensor in tiny().method.state_dict().items()}
    assert format.shapes(path) == expected
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=format.WEIGHTS):
        format.shapes(path)


# What means harm ---------------------------------------------------------------------------------


class Harmful:
    """Unpickling one makes a folder."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.fixture
def trap(tmp_path):
    """A pickle, and what would be there had it been read."""
    target = tmp_path / "executed"
    pickle.loads(pickle.dumps(Harmful(target)))
    assert target.exists()  # the trap works
    target.rmdir()
    return Harmful(target), target


@pytest.mark.parametrize("name", ["model.pt", "model.ckpt", "model.bin", "model.PTH", "weights"])
@pytest.mark.parametrize("zipped", [False, True])
def test_pickles_are_not_read(tmp_path, trap, name, zipped):
    harmful, target = trap
    path = tmp_path / name
    torch.save({"a": harmful}, path, _use_new_zipfile_serialization=zipped)
    refused(path, path, "pickled weights are never read")
    refused(str(path), path, "pickled weights are never read")
    assert not target.exists()
    refused(tmp_path / "elsewhere.pt", "pickled weights are never read")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("zipped", [False, True])
def test_pickles_under_the_names_of_the_format_are_not_read(folder, trap, name, zipped):
    harmful, target = trap
    torch.save({"a": harmful}, folder / name, _use_new_zipfile_serialization=zipped)
    if name != format.MANIFEST:
        seal(folder)
    if name in (*format.REQUIRED, format.MANIFEST):
        refused(folder, folder / name)
    reader = format.read_json if name.endswith(".json") else format.read_tensors
    with pytest.raises(InputError, match=name):
        reader(folder / name)
    assert not target.exists()


def test_a_recipe_imports_and_opens_nothing(folder, tmp_path):
    """Parsers of options take the name of a class or of a file where a section is due."""
    (tmp_path / "section.yaml").write_text("width: 16\nheads: 2\n")
    harmful = {"class_path": "antigravity.Geohash", "init_args": {}}
    assert "antigravity" not in sys.modules
    for section in (harmful, str(tmp_path / "section.yaml"), "antigravity"):
        edit(folder / format.CONFIG, lambda c, s=section: c["recipe"].update(network=s))
        seal(folder)
        refused(folder, folder / format.CONFIG, "network")
    assert "antigravity" not in sys.modules


def test_links_lead_to_checked_files_or_nowhere(folder, tmp_path):
    """The hub's cache is made of links. What they lead to must have the right checksum."""
    path = folder / format.TOKENIZER
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    assert same(load(folder), tiny())
    (tmp_path / "blob").write_text((tmp_path / "blob").read_text() + " ")
    refused(folder, path, "was changed")
    for place in ("/etc/hostname", "/dev/zero", "nowhere", format.TOKENIZER):
        path.unlink()
        path.symlink_to(place)
        refused(folder, folder)


@pytest.mark.parametrize("name", [format.MANIFEST, format.CONFIG])
def test_nobody_waits_for_a_pipe(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, name)


# Wrong contents under the right checksums --------------------------------------------------------


def change_weights(folder, change):
    path = folder / format.WEIGHTS
    weights = safetensors.torch.load_file(path)
    change(weights)
    safetensors.torch.save_file(weights, path)
    seal(folder)


HEAD = "network.head.weight"


def test_tensors_must_be_the_networks_own(folder):
    shape = list(tiny().method.state_dict()[HEAD].shape)
    path = folder / format.WEIGHTS
    data = path.read_bytes()
    for change, words in [
        (lambda w: w.pop(HEAD), ["lacks the tensor"]),
        (lambda w: w.update({HEAD: w[HEAD].T.contiguous()}), [shape, shape[::-1]]),
        (lambda w: w.update({HEAD: w[HEAD][:0]}), [[0, 8]]),
        (lambda w: w.update({HEAD: w[HEAD].flatten()}), [shape]),
        (lambda w: w.update({HEAD: w[HEAD].long()}), ["torch.int64"]),
        (lambda w: w.update({HEAD: w[HEAD].bool()}), ["torch.bool"]),
        (lambda w: w.update({HEAD: w[HEAD].to(torch.complex64)}), ["torch.complex64"]),
        (lambda w: w.update({HEAD: w[HEAD].double()}), ["torch.float64", "torch.float32"]),
        (lambda w: w.update({HEAD: w[HEAD].to(torch.float8_e4m3fn)}), ["torch.float8"]),
    ]:
        path.write_bytes(data)
        change_weights(folder, change)
        refused(folder, path, HEAD, *words)


def test_unknown_tensors_are_refused_by_name(folder):
    change_weights(folder, lambda w: w.update({"network.evil": torch.zeros(1)}))
    refused(folder, folder / format.WEIGHTS, "unknown tensor", "network.evil")


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e5m2, torch.bool])
def test_weights_of_a_type_that_is_none_are_refused(folder, dtype):
    change_weights(folder, lambda w: w.update({name: t.to(dtype) for name, t in w.items()}))
    refused(folder, folder / format.WEIGHTS, dtype)


def test_a_file_without_tensors_is_refused(folder):
    change_weights(folder, lambda w: w.clear())
    refused(folder, folder / format.WEIGHTS, "too few tensors")


def change_recipe(folder, section, **values):
    edit(folder / format.CONFIG, lambda c: c["recipe"][section].update(values))
    seal(folder)


@pytest.mark.parametrize(
    ("section", "key", "hint"),
    [("network", "widht", "width"), ("method", "__class__", ""), ("run", "x" * 10**6, "")],
)
def test_unknown_keys_are_refused_by_name(folder, section, key, hint):
    change_recipe(folder, section, **{key: 1})
    refused(folder, folder / format.CONFIG, f"unknown key '{section}.{key[:5]}", hint)
    with pytest.raises(InputError) as caught:
        load(folder)
    assert len(str(caught.value)) < 1000


def test_unknown_sections_are_refused_by_name(folder):
    edit(folder / format.CONFIG, lambda c: c["recipe"].update(newtork={}))
    seal(folder)
    refused(folder, "newtork", "did you mean network?")


@pytest.mark.parametrize("recipe", [None, [], "mdlm", 3])
def test_what_is_no_recipe_is_refused(folder, recipe):
    edit(folder / format.CONFIG, lambda c: c.update(recipe=recipe))
    seal(folder)
    refused(folder, folder / format.CONFIG, "recipe")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("network", "width", "8"),
        ("network", "width", 8.0),
        ("network", "width", True),
        ("network", "width", None),
        ("network", "qk_norm", 1),
        ("network", "mlp", ["swiglu"]),
        ("network", "mlp_ratio", 10**400),
        ("network", "rotary_base", -(10**400)),
        ("method", "schedule_options", {"exponent": "3"}),
        ("method", "corruption_options", {"steps": 1.5}),
        ("method", "corruption_options", [["steps", 1]]),
        ("sampling", "options", []),
        ("training", "steps", "many"),
        ("data", "path", 3),
        ("run", "wandb", {}),
    ],
)
def test_values_of_another_type_are_refused_by_name(folder, section, key, value):
    change_recipe(folder, section, **{key: value})
    refused(folder, folder / format.CONFIG, f"{section}.{key} must be")


@pytest.mark.parametrize(
    ("section", "key", "value", "word"),
    [
        ("method", "name", "mdml", "mdlm"),
        ("method", "schedule", "square", "square"),
        ("method", "corruption", "cubic", "cubic"),
        ("method", "conditioning", "temperature", "temperature"),
        ("method", "schedule_options", {"exponent": 3}, "exponent"),
        ("method", "corruption_options", {"schedule": 3}, "schedule"),
        ("method", "corruption_options", {"self": 3}, "self"),
        ("network", "norm", "batch", "batch"),
        ("network", "heads", 3, "heads"),
        ("network", "mlp_ratio", float("nan"), "mlp_ratio"),
        ("network", "mlp_ratio", float("inf"), "mlp_ratio"),
        ("network", "mlp_ratio", -1.0, "mlp_ratio"),
        ("network", "classes", -1, "classes"),
        ("sampling", "temperature", -1.0, "temperature"),
        ("training", "batch_size", 0, "batch_size"),
        ("run", "keep", -3, "keep"),
    ],
)
def test_impossible_values_are_refused(folder, section, key, value, word):
    change_recipe(folder, section, **{key: value})
    refused(folder, folder / format.CONFIG, word)


@pytest.mark.parametrize(
    "sizes",
    [
        {"width": 10**9, "heads": 1},
        {"width": 10**30, "heads": 1},
        {"depth": 10**9},
        {"length": 10**9},
        {"length": 10**30},
        {"classes": 10**12},
        {"classes": 10**30},
        {"mlp_ratio": 1e12},
        {"mlp_ratio": 1e300},
        {"classes": 1, "condition_width": 10**10},
        {"classes": 1, "condition_width": 10**30},
        {"classes": 1, "condition_width": -1},
    ],
)
def test_sizes_that_no_memory_holds_are_refused_at_once(folder, sizes):
    change_recipe(folder, "network", **sizes)
    begun = time.monotonic()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, before[1]))
    try:
        with pytest.raises(InputError) as caught:
            load(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert str(folder) in str(caught.value)
    assert "alloc" not in str(caught.value).lower()  # memory that was asked for, and not there
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("description", "word"),
    [
        ({}, "kind"),
        ({"kind": "pickle"}, "pickle"),
        ({"kind": ["bytes"]}, "bytes"),
        ({"kind": "characters"}, "alphabet"),
        ({"kind": "characters", "alphabet": ""}, "empty"),
        ({"kind": "characters", "alphabet": "aa"}, "twice"),
        ({"kind": "characters", "alphabet": ["a", "b"]}, "alphabet"),
        ({"kind": "tokenizers", "json": "{}"}, "tokenizer.json"),
        ({"kind": "tokenizers", "json": "["}, "tokenizer.json"),
        ({"kind": "tokenizers", "json": "[" * 10**5}, "tokenizer.json"),
        ({"kind": "tokenizers", "json": {}}, "json"),
        ({"kind": "bytes"}, "expected"),  # a real one, but not of these weights
    ],
)
def test_wrong_tokenizers_are_refused(folder, description, word):
    (folder / format.TOKENIZER).write_text(json.dumps(description))
    seal(folder)
    refused(folder, folder, word)


def test_a_vocabulary_that_no_memory_holds_is_refused(folder):
    content = json.loads(TOKENIZERS["bpe"].describe()["json"])
    content["model"]["vocab"]["a"] = 2**32 - 1
    description = {"kind": "tokenizers", "json": json.dumps(content)}
    (folder / format.TOKENIZER).write_text(json.dumps(description))
    seal(folder)
    largest = f"its largest id is {2**32 - 1:,}"
    refused(folder, folder / format.TOKENIZER, largest, "number the tokens from 0 on")


def test_a_table_that_claims_gigabytes_is_refused(folder):
    content = json.loads(TOKENIZERS["bpe"].describe()["json"])
    table = {"type": "Precompiled", "precompiled_charsmap": "////fwAA"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [table]}
    description = {"kind": "tokenizers", "json": json.dumps(content)}
    (folder / format.TOKENIZER).write_text(json.dumps(description))
    seal(folder)
    refused(folder, folder / format.TOKENIZER, 2**31 - 1)


@pytest.mark.parametrize("provenance", [[], "home", 3, None])
def test_a_history_without_keys_is_refused(folder, provenance):
    edit(folder / format.CONFIG, lambda c: c.update(provenance=provenance))
    seal(folder)
    refused(folder, folder / format.CONFIG, "provenance")


def test_a_history_of_any_contents_makes_a_card(folder):
    data = "\ud800 | a\n# b | ☃"
    edit(folder / format.CONFIG, lambda c: c["provenance"].update(data=data, step=[{}]))
    seal(folder)
    model = load(folder)
    model.save(folder)
    row = next(line for line in model.card().splitlines() if "trained on" in line)
    assert row == "| trained on | \ud800 \\| a # b \\| ☃ |"
    assert "? \\| a # b \\| ☃" in (folder / "README.md").read_text(encoding="utf-8")
    assert same(load(folder), model)


# Which folder is meant ---------------------------------------------------------------------------


def checkpoint(run, step, **metrics):
    place = checkpoints.folder_of(run, step)
    state = {"step": step, "seconds": 0.0, "metrics": metrics}
    format.write(place, tiny().contents() | {format.STATE: state})
    return place


def test_a_run_means_its_best_checkpoint(tmp_path):
    run = tmp_path / "run"
    early = checkpoint(run, 5)
    newest = checkpoint(run, 100_000_000)  # one digit more than names are filled up to
    assert find(run) == newest
    assert checkpoints.latest(run) == newest
    assert checkpoints.listed(run) == [early, newest]
    best = checkpoint(run, 20, valid_bits=2.0)
    checkpoint(run, 30, valid_bits=2.5)
    checkpoint(run, 40, valid_bits=float("nan"))
    checkpoint(run, 50, valid_bits=float("-inf"))
    assert find(run) == best
    assert same(load(run), tiny())
    assert find(best) == best
    assert checkpoints.latest(run) == newest


@pytest.mark.parametrize("bits", ["1", None, [1.0], 10**400, -(10**400), {}])
def test_metrics_that_are_no_numbers_do_not_count(tmp_path, bits):
    good = checkpoint(tmp_path, 1, valid_bits=3.0)
    checkpoint(tmp_path, 2, valid_bits=bits)
    assert find(tmp_path) == good


def test_what_is_no_complete_checkpoint_does_not_count(tmp_path):
    good = checkpoint(tmp_path, 1)
    for name in ("step-00000009.partial-7", "step-", "step-²", "step-x", "other"):
        (tmp_path / checkpoints.FOLDER / name).mkdir()
    (tmp_path / checkpoints.FOLDER / "step-00000008").write_text("a file")
    assert checkpoints.listed(tmp_path) == [good]


def test_a_damaged_state_is_refused_by_name(tmp_path):
    path = checkpoint(tmp_path, 1) / format.STATE
    path.write_text("{")
    refused(tmp_path, path)
    path.write_text('{"metrics": 3}')
    seal(path.parent)
    assert same(load(tmp_path), tiny())


def test_folders_without_a_model_are_refused(tmp_path):
    refused(tmp_path, tmp_path, "neither a model", "nor a checkpoint")
    (tmp_path / checkpoints.FOLDER).mkdir()
    refused(tmp_path, tmp_path, "neither a model", "nor a checkpoint")


@pytest.mark.parametrize(
    "name", ["nowhere", "a/b/c", "", "x" * 5000, "a\0b", "..", "/nowhere/else"]
)
def test_paths_that_lead_nowhere_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    refused(name)


# The hub -----------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the hub, and no network."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return cache


def publish(cache, name, model, commit="a" * 40):
    """A model as a download leaves it in the cache: links to files that are named by contents."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(commit)
    model.save(place / "snapshots" / commit)
    (place / "blobs").mkdir(exist_ok=True)
    for path in (place / "snapshots" / commit).iterdir():
        blob = place / "blobs" / sha256(path)
        path.rename(blob)
        path.symlink_to(Path("../../blobs") / blob.name)
    return place


def test_hub_conventions_and_ours_agree(tmp_path):
    model = tiny("md4", "bpe")
    assert model.save_pretrained(tmp_path / "model") is None
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {format.MANIFEST, format.CARD, *format.REQUIRED}
    assert same(TextModel.from_pretrained(tmp_path / "model"), model)
    assert same(TextModel.from_pretrained(str(tmp_path / "model"), device="cpu"), model)
    assert same(partita.load(tmp_path / "model"), model)
    model.save(tmp_path / "saved")
    for name in names:
        ours, theirs = tmp_path / "saved" / name, tmp_path / "model" / name
        assert ours.read_bytes() == theirs.read_bytes()


def test_from_pretrained_refuses_unknown_options(tmp_path):
    tiny().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="devise"):
        TextModel.from_pretrained(tmp_path, devise="cpu")


def test_from_pretrained_checks_before_it_reads(tmp_path):
    tiny().save_pretrained(tmp_path)
    for text in ("{", "[]", ""):
        (tmp_path / format.CONFIG).write_text(text)
        with pytest.raises(InputError, match=format.CONFIG):
            TextModel.from_pretrained(tmp_path)


def test_a_new_model_takes_the_place_of_an_old_one(tmp_path):
    tiny().save_pretrained(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    tiny("ar").save_pretrained(tmp_path)
    assert same(load(tmp_path), tiny("ar"))
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("method", "fills"), [("mdlm", True), ("ar", False)])
def test_the_card_says_what_the_model_is(tmp_path, method, fills):
    model = tiny(method)
    model.save(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    loaded = huggingface_hub.ModelCard(card)
    assert loaded.data.library_name == "partita"
    assert method in loaded.data.tags
    assert ("masked-diffusion" in loaded.data.tags) == fills
    assert ("model.infill" in card) == fills
    assert f"| parameters | {sum(p.numel() for p in model.method.parameters()):,} |" in card
    assert "| trained on | notes.txt |" in card


TERMS = {"language": ["en", "no"], "license": "other", "license_name": "ours"}


def test_what_a_card_states_is_kept(tmp_path):
    model = tiny()
    assert model.terms == {}
    model.terms = TERMS
    model.save(tmp_path / "first")
    load(tmp_path / "first").save(tmp_path / "second")
    again = load(tmp_path / "second")
    assert again.terms == TERMS
    assert again.card() == model.card()
    loaded = huggingface_hub.ModelCard(model.card())
    assert (loaded.data.license, loaded.data.language) == ("other", ["en", "no"])
    assert "mdlm" in loaded.data.tags


@pytest.mark.parametrize(
    ("origin", "row"),
    [
        ({"path": "/home/me/first", "terms": TERMS}, "first, whose licence is other"),
        ({"path": "org/name", "terms": {}}, "org/name"),
        ({"terms": [TERMS]}, "another model"),
        ("first", None),
    ],
)
def test_a_card_names_the_model_that_training_started_from(origin, row):
    model = tiny()
    model.provenance["started_from"] = origin
    assert model.terms == {}  # that licence is told, not taken over
    found = [line for line in model.card().splitlines() if line.startswith("| started from")]
    assert found == ([] if row is None else [f"| started from | {row} |"])


@pytest.mark.parametrize(
    "card",
    [
        b"",
        b"no header",
        b"---\n\xff: a\n---\n",
        b"---\n- a\n---\n",
        b"---\nlicense: [\n---\n",
        b"---\nlicense: {a: b}\nlanguage: 3\n---\n",
        b"---\nlicense: " + b"[" * 5000 + b"\n---\n",
        b"---\nlicense: &a [*a]\nlanguage: []\n---\n",
    ],
)
def test_a_card_of_any_contents_states_nothing(tmp_path, card):
    tiny().save(tmp_path / "model")
    (tmp_path / "model" / format.CARD).write_bytes(card)
    assert load(tmp_path / "model").terms == {}
    (tmp_path / "model" / format.CARD).unlink()
    assert load(tmp_path / "model").terms == {}


def test_a_name_on_the_hub_loads_from_the_cache(hub):
    publish(hub, "org/name", tiny("md4"))
    assert same(partita.load("org/name"), tiny("md4"))
    assert same(TextModel.from_pretrained("org/name"), tiny("md4"))


def test_revisions_and_places_of_the_cache_are_heeded(hub, tmp_path):
    publish(hub, "org/name", tiny("mdlm"), "b" * 40)
    publish(hub, "org/name", tiny("md4"), "a" * 40)
    assert same(partita.load("org/name"), tiny("md4"))
    assert same(partita.load("org/name", revision="b" * 40), tiny("mdlm"))
    publish(tmp_path / "other", "org/name", tiny("ar"))
    options = {"cache_dir": tmp_path / "other", "local_files_only": True}
    assert same(TextModel.from_pretrained("org/name", **options), tiny("ar"))
    with pytest.raises(InputError, match="org/name"):
        partita.load("org/name", revision="c" * 40)


def test_a_damaged_cache_is_refused_by_file(hub):
    place = publish(hub, "org/name", tiny())
    (link,) = place.glob(f"snapshots/*/{format.WEIGHTS}")
    link.resolve().write_bytes(b"x")
    refused("org/name", format.WEIGHTS, "was changed")
    link.unlink()
    refused("org/name", format.WEIGHTS, "is missing")


@pytest.mark.parametrize("name", ["org/name", "runs/notes-mdlm", "a--b/c", "-/-"])
@pytest.mark.usefixtures("hub")
def test_names_that_nobody_has_are_refused_quickly(name):
    begun = time.monotonic()
    refused(name, name)
    with pytest.raises(InputError):
        TextModel.from_pretrained(name)
    assert time.monotonic() - begun < 10


def test_a_folder_comes_before_the_hub(hub, tmp_path, monkeypatch):
    publish(hub, "org/name", tiny("md4"))
    monkeypatch.chdir(tmp_path)
    tiny("ar").save("org/name")
    assert same(partita.load("org/name"), tiny("ar"))


@pytest.mark.parametrize("damage", [b"{}", b'{"metrics": {"valid_bits": 9.0}}'])
def test_damaged_figures_never_choose_another_checkpoint(tmp_path, damage):
    """The best one is not known then: readers are told, and only a run that goes on passes over."""
    good = checkpoint(tmp_path, 1, valid_bits=3.0)
    path = checkpoint(tmp_path, 2, valid_bits=2.0) / format.STATE
    path.write_bytes(damage)
    refused(tmp_path, path)
    assert checkpoints.best(tmp_path, pass_over_damage=True) == good
