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

from partita.commands.train import PRINT, options
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe, flatten
from partita.methods import METHODS
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
