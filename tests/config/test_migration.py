"""Files of other versions: earlier recipes mean what they meant, later ones are refused."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import partita
from partita.commands import main
from partita.commands.train import options
from partita.config import migration
from partita.config.migration import KEY, OLDEST, STEPS, VERSION, Step
from partita.config.recipe import Recipe
from partita.config.renames import RENAMED, TRAINING
from partita.errors import InputError
from partita.files import format
from partita.models.default import WEIGHTS
from partita.networks.old_names import MOVED
from partita.training.run_folder import RECIPE
from tests.support.kill_and_resume import corpus, last
from tests.support.models import edit, seal, tiny

LATER = VERSION + 1
UNKNOWN = [0, -1, True, 1.0, "1", None, [1], "x" * 10_000]


def older(content):
    """What a program wrote before there were versions and `network.qk_scale`."""
    del content[KEY], content["recipe"]["network"]["qk_scale"]


# Steps -------------------------------------------------------------------------------------------


def renamed(recipe):
    """A key with another name: the kind of step that most versions need."""
    training = dict(recipe.get("training", {}))
    if "speed" in training:
        training["pace"] = training.pop("speed")
    return recipe | {"training": training}


def filled(recipe):
    """A new key, which recipes from before mean in another way than its default is."""
    return {**recipe, "run": {"shoes": "old", **recipe.get("run", {})}}


def moved(recipe):
    """A key in another section."""
    pace = recipe["training"].get("pace")
    return recipe if pace is None else {**recipe, "training": {}, "run": {"pace": pace}}


THREE = {1: Step(renamed), 2: Step(filled, complete=True), 3: Step(moved)}


@pytest.mark.parametrize(
    ("version", "after"),
    [
        (1, {"training": {}, "run": {"pace": 3}}),
        (2, {"training": {"speed": 3}, "run": {"shoes": "old"}}),
        (3, {"training": {"speed": 3}}),
        (4, {"training": {"speed": 3}}),
    ],
)
def test_the_steps_from_a_version_on_are_applied_in_order(version, after):
    before = {"training": {"speed": 3}}
    assert migration.migrated(before, version, steps=THREE) == after
    assert before == {"training": {"speed": 3}}


def test_what_people_leave_out_has_no_meaning_of_old():
    before = {"training": {"loud": True}}
    assert migration.migrated(before, 1, steps=THREE) == before | {"run": {"shoes": "old"}}
    assert migration.migrated(before, 1, complete=False, steps=THREE) == before


def test_every_version_but_the_last_has_a_step():
    assert list(STEPS) == list(range(OLDEST, VERSION))


@pytest.mark.parametrize("version", range(OLDEST, VERSION + 1))
@pytest.mark.parametrize("recipe", [{}, {"network": {}}, {"network": None}, Recipe().to_dict()])
def test_steps_make_new_dictionaries_of_whatever_a_file_holds(version, recipe):
    before = copy.deepcopy(recipe)
    migration.migrated(recipe, version)
    assert recipe == before


def test_python_has_the_keys_of_today_alone():
    """`from_dict` neither migrates nor accepts a version."""
    assert Recipe.from_dict({"network": {}}).network.qk_scale == Recipe().network.qk_scale
    with pytest.raises(InputError, match=f"unknown key '{KEY}'"):
        Recipe.from_dict({KEY: OLDEST})


OLD_NAMES = {
    "data": {"path": "a", "valid": 0.2, "colour": True},
    "training": {"optimiser": "muon", "rate": "wsd", "clip": 2.0, "ema": 0.5, "steps": 3},
    "run": {"distribution": "fsdp", "recompute": True, "capture": False, "keep": 4},
}
NEW_NAMES = {
    "data": {"path": "a", "validation_fraction": 0.2, "color": True},
    "training": {
        "optimizer": "muon",
        "lr_schedule": "wsd",
        "max_grad_norm": 2.0,
        "ema_decay": 0.5,
        "steps": 3,
    },
    "run": {
        "parallel": "fsdp",
        "activation_checkpointing": True,
        "cuda_graph": False,
        "keep_checkpoints": 4,
    },
}


def test_keys_have_new_names():
    assert migration.migrated(OLD_NAMES, 2) == NEW_NAMES
    assert migration.migrated(NEW_NAMES, 2) == NEW_NAMES
    assert migration.migrated({"training": [1], "run": None}, 2) == {"training": [1], "run": None}
    both = {"training": {"ema": 0.5, "ema_decay": 0.6}}  # which of the two is meant?
    assert migration.migrated(both, 2) == both
    recipe = Recipe.from_dict(NEW_NAMES)
    assert {f"{name}.{key}" for name in OLD_NAMES for key in OLD_NAMES[name]} >= set(TRAINING)
    assert migration.migrated(OLD_NAMES, OLDEST, complete=False) == NEW_NAMES
    assert recipe.training.ema_decay == 0.5


@pytest.mark.parametrize("key", TRAINING)
def test_an_old_keyword_is_refused_with_the_new_name(key):
    section, name = key.split(".")
    options = type(getattr(Recipe(), section))
    with pytest.raises(InputError) as caught:
        options(**{name: 1})
    assert (caught.value.argument, caught.value.problem) == (key, "has another name now")
    assert caught.value.remedy == f"write {RENAMED[key]}"
    with pytest.raises(InputError, match=f"write {RENAMED[key]}"):
        Recipe.from_dict({section: {name: 1}})


# Models ------------------------------------------------------------------------------------------


def test_a_model_from_before_there_was_a_scale_computes_what_it_computed(tmp_path):
    model = tiny()
    model.save(tmp_path / "model")
    edit(tmp_path / "model" / format.CONFIG, older)
    seal(tmp_path / "model")
    read = partita.load(tmp_path / "model", device="cpu")
    plain = replace(model.recipe.network, qk_scale=1.0)
    assert read.recipe == replace(model.recipe, network=plain)
    built = read.recipe.method.build(plain, model.tokenizer.vocab_size).eval()
    built.load_state_dict(model.method.state_dict())
    tokens = torch.arange(4)[None]
    answers = [method.network(tokens) for method in (read.method, built, model.method)]
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


def test_a_model_without_a_version_keeps_what_it_states(tmp_path):
    model = tiny()
    model.save(tmp_path / "model")
    edit(tmp_path / "model" / format.CONFIG, lambda content: content.pop(KEY))
    seal(tmp_path / "model")
    assert partita.load(tmp_path / "model", device="cpu").recipe == model.recipe


def test_what_is_saved_states_its_version(tmp_path):
    tiny().save(tmp_path / "model")
    content = json.loads((tmp_path / "model" / format.CONFIG).read_text())
    assert content[KEY] == VERSION
    assert content["recipe"] == tiny().recipe.to_dict()


def test_the_model_in_the_package_is_read_as_it_was_written():
    content = json.loads((WEIGHTS / format.CONFIG).read_text())
    recipe = migration.saved_recipe(content, WEIGHTS)
    assert partita.load(device="cpu").recipe.to_dict() == Recipe.from_dict(recipe).to_dict()
    for key in content["recipe"]["network"].keys() - {"kind", "decoder", *MOVED}:
        assert recipe["network"][key] == content["recipe"]["network"][key]


def test_information_is_given_in_the_keys_of_today(tmp_path, capsys):
    tiny().save(tmp_path / "model")
    edit(tmp_path / "model" / format.CONFIG, older)
    seal(tmp_path / "model")
    assert main(["info", str(tmp_path / "model"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["recipe"]["network"]["qk_scale"] == 1.0


@pytest.mark.parametrize("version", UNKNOWN, ids=lambda version: repr(version)[:9])
def test_a_version_that_is_none_is_refused(version, tmp_path):
    tiny().save(tmp_path / "model")
    edit(tmp_path / "model" / format.CONFIG, lambda content: content.update({KEY: version}))
    seal(tmp_path / "model")
    with pytest.raises(InputError) as caught:
        partita.load(tmp_path / "model")
    place = tmp_path / "model" / format.CONFIG
    problem = f"{place}: {KEY} must be a whole number from {OLDEST} to {VERSION}, got "
    assert caught.value.problem.startswith(problem)
    assert len(caught.value.problem) <= len(problem) + 200


# The command line --------------------------------------------------------------------------------

SMALL = "--network.length 16 --network.width 8 --network.depth 1 --network.heads 2"
SHORT = "--training.steps 2 --training.batch_size 2 --run.previews 0 --run.device cpu"
TRAIN = ["train", "corpus.txt", "--out", "run", *SMALL.split(), *SHORT.split()]
PLAIN = ["--network.qk_scale", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A text, and a run whose networks had the scale that was there before it had a name."""
    folder = tmp_path_factory.mktemp("trained")
    corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*TRAIN, *PLAIN]) == 0
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """A copy of both, as the working directory."""
    shutil.copytree(trained, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_and_its_checkpoints_state_their_version(here):
    for path in (here / "run" / RECIPE, last(here / "run") / format.CONFIG):
        content = json.loads(path.read_text())
        assert content[KEY] == VERSION
        assert content["recipe"]["network"]["qk_scale"] == 1.0


def test_a_run_from_before_goes_on_as_what_it_was(here, capsys):
    edit(here / "run" / RECIPE, older)
    for checkpoint in (here / "run" / "checkpoints").iterdir():
        edit(checkpoint / format.CONFIG, older)
        seal(checkpoint)
    before = contents(here)
    capsys.readouterr()
    assert main(TRAIN) == 2  # with the scale of today it would be another network
    assert "\n  network.qk_scale: 1.0 -> 2.0\n" in capsys.readouterr().err
    assert contents(here) == before
    assert main([*TRAIN, *PLAIN]) == 0
    assert "nothing was left to do" in capsys.readouterr().out
    assert json.loads((here / "run" / RECIPE).read_text())[KEY] == VERSION


def test_models_from_before_are_trained_further_and_distilled_as_what_they_were(here):
    for checkpoint in (here / "run" / "checkpoints").iterdir():
        edit(checkpoint / format.CONFIG, older)
        seal(checkpoint)
    recipe, _ = options(["corpus.txt", "--from", "run"])
    assert recipe.network.qk_scale == 1.0
    assert main(["train", "corpus.txt", "--from", "run", "--out", "more", *SHORT.split()]) == 0
    assert main(["distill", "--teacher", "run", "--out", "student", *SHORT.split()]) == 0
    for folder in ("more", "student"):
        assert partita.load(folder, device="cpu").recipe.network.qk_scale == 1.0


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ("info run", "model"),
        ("sample run", "model"),
        ("export run copy", "model"),
        ("train corpus.txt --from run --out more", "--from"),
        ("distill --teacher run --out student", "--teacher"),
    ],
)
def test_a_model_of_a_later_version_is_refused(words, argument, here, capsys):
    (checkpoint,) = (here / "run" / "checkpoints").iterdir()
    edit(checkpoint / format.CONFIG, lambda content: content.update({KEY: LATER}))
    seal(checkpoint)
    before = contents(here)
    capsys.readouterr()
    assert main(words.split()) == 2
    place = checkpoint.relative_to(here) / format.CONFIG
    assert capsys.readouterr().err.endswith(
        f"{argument}: {place} has {KEY} {LATER}, this version of partita reads up to {VERSION}; "
        "update partita\n"
    )
    assert contents(here) == before


def test_a_run_of_a_later_version_is_not_touched(here, capsys):
    edit(here / "run" / RECIPE, lambda content: content.update({KEY: LATER}))
    before = contents(here)
    capsys.readouterr()
    assert main([*TRAIN, *PLAIN]) == 2
    problem = f"--out: {Path('run', RECIPE)} has {KEY} {LATER}, this version of partita reads up to"
    assert problem in capsys.readouterr().err
    assert contents(here) == before


# YAML --------------------------------------------------------------------------------------------

WRITTEN = {
    "data": {"path": 'a: "b"\nä ☃', "field": "1e-3"},
    "network": {"width": 64},
    "training": {"max_grad_norm": float("inf"), "seconds": 2.5},
    "sampling": {"options": {"list": [1, None, "null", True]}},
}


def recipe_file(text):
    Path("recipe.yaml").write_text(text)
    return ["--config", "recipe.yaml"]


@pytest.mark.usefixtures("here")
def test_a_yaml_recipe_means_what_it_meant_in_the_version_that_it_states():
    """Every other value comes through as it is; flags override it as ever."""
    sections = json.dumps(WRITTEN).replace("Infinity", ".inf")
    today = options(recipe_file(sections))[0]
    assert today == Recipe.from_dict(WRITTEN)
    for version in range(OLDEST, VERSION + 1):
        words = recipe_file(f'{{"{KEY}": {version}, {sections[1:]}')
        scale = 1.0 if version == 1 else 2.0
        assert options(words)[0] == replace(today, network=replace(today.network, qk_scale=scale))
        joined = [f"--config={words[1]}", "--network.qk_scale", "3"]
        assert options(joined)[0].network.qk_scale == 3.0


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (
            LATER,
            f"recipe.yaml has {KEY} {LATER}, this version of partita reads up to {VERSION}; up",
        ),
        (0, f"recipe.yaml: {KEY} must be a whole number from {OLDEST} to {VERSION}, got 0\n"),
        ("two", f"recipe.yaml: {KEY} must be a whole number from {OLDEST} to {VERSION}, got 'two'"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "distill --teacher run"])
@pytest.mark.usefixtures("here")
def test_a_yaml_recipe_of_an_unknown_version_is_refused(verb, version, problem, capsys):
    words = [*verb.split(), *recipe_file(f"{KEY}: {version}\n")]
    capsys.readouterr()
    assert main(words) == 2
    assert f"--config: {problem}" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_what_is_wrong_in_a_recipe_of_an_earlier_version_is_named_with_its_file(capsys):
    words = recipe_file(f"{KEY}: {OLDEST}\ntraining: {{steps: many}}\n")
    assert main(["train", "corpus.txt", *words]) == 2
    message = "training.steps: must be a whole number, got 'many' (in recipe.yaml)"
    assert message in capsys.readouterr().err
