"""One meaning of a recipe: from Python, from flags and from YAML it is the same, key by key."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.commands.train import PRINT, options
from partita.config.method import MethodOptions
from partita.config.migration import VERSION, migrated
from partita.config.recipe import Recipe, differences, flatten
from partita.methods import METHODS
from partita.networks import NETWORKS
from tests.support.kill_and_resume import corpus, last

ROOT = Path(__file__).parents[2]
RECIPES = [  # of partita train
    path for path in sorted((ROOT / "recipes").glob("*.yaml")) if path.stem != "sdtt"
]
LOSSES = 20


def keys(section=None, prefix=""):
    """Every key of a recipe, with a dot between those inside one another."""
    for field in dataclasses.fields(section or Recipe()):
        value = getattr(section or Recipe(), field.name)
        if dataclasses.is_dataclass(value):
            yield from keys(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


KEYS = list(keys())


def value(recipe, key):
    """What a recipe has under a key."""
    for name in key.split("."):
        recipe = getattr(recipe, name)
    return recipe


def from_yaml(sections, folder):
    """The recipe that the command line makes of a YAML file."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(sections))
    return options(["--config", str(path)])[0]


def flags(sections):
    """The flags that give these sections."""
    held = flatten(sections).items()
    return [f"--{key}={x if isinstance(x, str) else json.dumps(x)}" for key, x in held]


def every_way(sections, folder):
    """The recipes that these sections make, by the way that they are given."""
    return {
        "from_dict": Recipe.from_dict(copy.deepcopy(sections)),
        "flags": options(flags(sections))[0],
        "YAML": from_yaml(sections, folder),
    }


def without(sections, key):
    """The sections with one key left out."""
    above, _, rest = key.partition(".")
    inside = sections[above]
    if not rest:
        return {name: held for name, held in sections.items() if name != above}
    return sections | {above: without(inside, rest)}


# Defaults ----------------------------------------------------------------------------------------


def test_every_key_has_the_same_default_in_python_flags_and_yaml(tmp_path, capsys):
    with pytest.raises(SystemExit):
        options([PRINT])
    printed = yaml.safe_load(capsys.readouterr().out)
    ways = every_way({}, tmp_path) | {"printed": Recipe.from_dict(printed)}
    ways["printed, as YAML"] = from_yaml(printed, tmp_path)
    for key in KEYS:
        found = {way: value(recipe, key) for way, recipe in ways.items()}
        assert found == dict.fromkeys(ways, value(Recipe(), key)), key
        kinds = {way: type(default) for way, default in found.items()}
        assert kinds == dict.fromkeys(ways, type(value(Recipe(), key))), key
    assert all(recipe == Recipe() for recipe in ways.values())


def test_the_keys_are_those_of_a_saved_recipe():
    """None is forgotten by the walk over the fields, and none by `to_dict`."""

    def leaves(sections, known):
        inside = [
            leaves(sections[name], below) if below else [name] for name, below in known.items()
        ]
        assert sections.keys() == known.keys()
        return [leaf for part in inside for leaf in part]

    tree: dict = {}
    for key in KEYS:
        branch = tree
        for name in key.split("."):
            branch = branch.setdefault(name, {})
    assert len(leaves(Recipe().to_dict(), tree)) == len(KEYS) == len(set(KEYS))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_left_out_has_its_default_where_all_others_are_given(key):
    assert Recipe.from_dict(without(Recipe().to_dict(), key)) == Recipe()


@pytest.mark.parametrize("section", list(Recipe().to_dict()))
def test_a_section_without_keys_and_one_that_is_left_out_have_their_defaults(section, tmp_path):
    for sections in ({section: {}}, without(Recipe().to_dict(), section)):
        assert Recipe.from_dict(sections) == from_yaml(sections, tmp_path) == Recipe()


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_the_same_defaults_in_python_flags_and_yaml(name, tmp_path):
    """Also those that follow from the method when a run begins."""
    python = Recipe(method=MethodOptions(name=name))
    for way, recipe in every_way({"method": {"name": name}}, tmp_path).items():
        for key in KEYS:
            assert value(recipe, key) == value(python, key), (way, key)
            resolved = value(recipe.resolved(), key)
            assert resolved == value(python.resolved(), key), (way, key)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_that_come_with_the_library_mean_the_same_in_python(path):
    sections = yaml.safe_load(path.read_text())
    assert Recipe.from_dict(sections) == options(["--config", str(path)])[0]


# Any recipe --------------------------------------------------------------------------------------

POSITIVE = st.floats(1e-6, 1e6)
TEXT = st.text(st.sampled_from("ab é☃:#\"'{}[]-1.\n"), min_size=1, max_size=8).filter(str.strip)
VALUES = {
    "data.path": TEXT,
    "data.documents": st.sampled_from(["paragraph", "line", "file"]),
    "data.label": st.none() | TEXT,
    "data.document_attention": st.booleans(),
    "tokenizer.vocab_size": st.integers(256, 9999),
    "method.name": st.sampled_from(sorted(METHODS)),
    "method.schedule_options": st.dictionaries(st.sampled_from(["rate", "exponent"]), POSITIVE),
    "method.corruption_options": st.dictionaries(
        st.sampled_from(["steps", "most"]), st.integers(1, 99)
    ),
    "method.options": st.dictionaries(
        st.sampled_from(["steps", "gaps"]), st.none() | st.booleans() | st.integers() | POSITIVE
    ),
    "network.kind": st.none() | st.sampled_from(sorted(NETWORKS)),
    "network.depth": st.integers(1, 99),
    "network.dropout": st.floats(0, 0.99),
    "network.qk_norm": st.booleans(),
    "network.options": st.dictionaries(
        st.sampled_from(["patch", "queries"]), st.integers(1, 9) | st.sampled_from(["mean", "x"])
    ),
    "training.learning_rate": POSITIVE,
    "training.seconds": st.none() | POSITIVE,
    "training.seed": st.integers(0, 2**64 - 1),
    "sampling.temperature": st.floats(0.01, 9),
    "sampling.top_k": st.none() | st.integers(1, 9),
    "run.previews": st.integers(0, 9),
}


@st.composite
def some_sections(draw):
    """Some keys of a recipe, each with some value that it takes."""
    sections: dict = {}
    for key in draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True)):
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = draw(VALUES[key])
    return sections


@given(sections=some_sections())
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_any_recipe_is_the_same_after_it_was_written_and_read(sections):
    recipe = Recipe.from_dict(copy.deepcopy(sections))
    for key in flatten(sections):
        if key in VALUES:
            assert value(recipe, key) == flatten(sections)[key]
    written = recipe.to_dict()
    assert Recipe.from_dict(written) == recipe
    assert Recipe.from_dict(written).to_dict() == written
    assert Recipe.from_dict(yaml.safe_load(yaml.safe_dump(written))) == recipe
    assert migrated(written, VERSION) == written
    assert not differences(written, recipe.to_dict())


@given(sections=some_sections())
@settings(max_examples=6, deadline=None, derandomize=True, database=None)
def test_any_recipe_is_the_same_from_flags_and_from_yaml(tmp_path_factory, sections):
    found = every_way(sections, tmp_path_factory.mktemp("recipes"))
    assert found["YAML"] == found["from_dict"]
    if not any(isinstance(held, dict) for part in sections.values() for held in part.values()):
        assert found["flags"] == found["from_dict"]


# Training ----------------------------------------------------------------------------------------

TINY = {
    "network": {"length": 16, "width": 16, "depth": 2, "heads": 2},
    "training": {"steps": LOSSES, "batch_size": 4},
    "run": {"device": "cpu", "log_every": 1, "validate_every": LOSSES, "previews": 0},
}
PROGRAM = """
import json, sys
import partita
recipe = partita.Recipe.from_dict(json.loads(sys.argv[1]))
partita.train(recipe, "run")
"""


def started(words, folder):
    """A program in a folder of its own, so that the recipe can be the same in every key."""
    folder.mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=environment, stderr=subprocess.PIPE
    )


def measured(run):
    """What a run wrote of its steps, without what clocks and memory say."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    names = ("step", "loss", "bits", "norm", "rate")
    return [{name: line[name] for name in names} for line in lines if "loss" in line]


def test_the_same_recipe_has_the_same_first_losses_from_python_and_from_the_command_line(tmp_path):
    """Bit by bit, as are the weights that they lead to."""
    sections = TINY | {"data": {"path": str(corpus(tmp_path))}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(sections))
    train = ["-m", "partita", "train", "--out", "run"]
    ways = {
        "python": ["-c", PROGRAM, json.dumps(sections)],
        "flags": [*train, *flags(sections)],
        "yaml": [*train, "--config", str(tmp_path / "recipe.yaml")],
    }
    processes = {way: started(words, tmp_path / way) for way, words in ways.items()}
    for process in processes.values():
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    python, *others = (tmp_path / way / "run" for way in ways)
    assert [line["step"] for line in measured(python)] == list(range(1, LOSSES + 1))
    assert len({line["loss"] for line in measured(python)}) == LOSSES
    for run in others:
        assert measured(run) == measured(python)
        for name in ("recipe.json", f"checkpoints/{last(run).name}/model.safetensors"):
            assert (run / name).read_bytes() == (python / name).read_bytes()


def test_the_page_on_training_shows_a_program_and_a_command_for_the_same_run():
    page = (ROOT / "docs" / "training.md").read_text()
    sections = re.search(r"partita\.Recipe\.from_dict\((\{.*\})\)", page)
    command = re.search(r"^partita train (.*) --out runs/from-flags$", page, re.MULTILINE)
    assert options(shlex.split(command[1]))[0] == Recipe.from_dict(ast.literal_eval(sections[1]))
