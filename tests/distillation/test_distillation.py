"""`partita distill`: rounds, what they leave, how they go on, what they refuse."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import partita
from partita.commands import main
from partita.commands.distill import options
from partita.config.data import DataOptions
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.config.sampling import SamplingOptions
from partita.config.training import RunOptions, TrainingOptions
from partita.distillation import DistillationOptions
from partita.errors import InputError
from partita.models import checkpoints
from partita.models.find import find
from partita.networks.options import TransformerOptions
from partita.training.runner import train
from tests.support.kill_and_resume import checkpoints as listed
from tests.support.kill_and_resume import compare, corpus, start, wait_for

PACE = "--training.steps 6 --training.batch_size 8 --run.validate_every 3 --run.log_every 1"
QUICK = (
    f"{PACE} --run.checkpoint_every 3 --run.previews 0 --run.device cpu --training.ema_decay 0.5"
)


def teach(place, method="mdlm", precision="float32", **network):
    """A teacher in place/METHOD, trained for next to no time."""
    sizes = {"length": 16, "width": 32, "depth": 2, "heads": 2} | network
    recipe = Recipe(
        data=DataOptions(
            path=str(corpus(place)), cache=str(place / "tokens"), validation_fraction=0.1
        ),
        method=MethodOptions(name=method, conditioning="none" if method == "md4" else None),
        network=TransformerOptions(**sizes),
        training=TrainingOptions(
            steps=20, batch_size=8, learning_rate=0.01, ema_decay=0.9, precision=precision
        ),
        sampling=SamplingOptions(temperature=0.9),
        run=RunOptions(device="cpu", previews=0, validate_every=100),
    )
    train(recipe, place / method)
    return place / method


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """One that several tests learn from, and none changes."""
    return teach(tmp_path_factory.mktemp("teacher"))


def distil(teacher, out, words=""):
    assert main(f"distill --teacher {teacher} --out {out} {QUICK} {words}".split()) == 0


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder):
    return load_file(find(folder) / "model.safetensors")


@pytest.mark.parametrize("method", ["mdlm", "md4", "pgm", "mdlm-complementary"])
def test_a_student_for_every_method_that_is_not_told_the_time(tmp_path, method):
    teacher, out = teach(tmp_path, method), tmp_path / "out"
    distil(teacher, out, "--distillation.steps 8 --distillation.divergence forward-kl")
    assert any(
        not torch.equal(weights(teacher)[name], tensor) for name, tensor in weights(out).items()
    )
    model = partita.load(out, device="cpu")
    assert type(model.method) is type(partita.load(teacher, device="cpu").method)
    assert model.recipe.sampling == SamplingOptions(temperature=0.9, steps=4)
    assert all(0 <= line["loss"] < 1 for line in metrics(out / "round-1") if "loss" in line)
    assert len(model.sample(2)) == 2


def test_each_round_halves_the_steps_and_remembers_where_it_comes_from(teacher, tmp_path, capsys):
    out = tmp_path / "out"
    distil(teacher, out, "--rounds 2 --distillation.steps 16")
    shown = capsys.readouterr().out
    assert f"Done. Model of the last round: {out}/round-2" in shown
    assert "Round 2: 4 steps of the student for 8 of the teacher" in shown
    assert "divergence from the teacher" in shown
    assert find(out) == find(out / "round-2")
    model = partita.load(out, device="cpu")
    chain = model.provenance["started_from"]
    assert chain["path"] == str(out / "round-1")
    assert chain["started_from"]["path"] == str(teacher)
    assert model.recipe.distillation.round == 2
    assert model.recipe.distillation.step_size == 2 / 16
    checksum = json.loads((find(out / "round-1") / "manifest.json").read_text())
    assert model.recipe.distillation.teacher in json.dumps(checksum)
    again = weights(out)
    distil(teacher, out, "--rounds 3 --distillation.steps 16")  # one more, the others as they are
    assert all(torch.equal(again[name], t) for name, t in weights(out / "round-2").items())
    assert partita.load(out, device="cpu").recipe.sampling.steps == 2


def test_a_student_learns_what_its_teacher_says(teacher, tmp_path):
    """The divergence on held-out text falls, also when a step stands for four."""
    out = tmp_path / "out"
    words = "--distillation.steps 8 --distillation.substeps 4 --training.steps 60"
    words += " --training.learning_rate 0.003 --run.validation_rows 64 --run.validate_every 10"
    distil(teacher, out, words)
    found = [line["valid_bits"] for line in metrics(out / "round-1") if "valid_bits" in line]
    assert found[-1] < 0.8 * found[0]
    assert partita.load(out, device="cpu").recipe.sampling.steps == 2


def test_killed_rounds_end_as_if_nothing_had_happened(teacher, tmp_path):
    sizes = "--rounds 2 --distillation.steps 16 --training.steps 30 --training.batch_size 8"
    pace = "--run.checkpoint_every 3 --run.validate_every 10 --run.log_every 1 --run.previews 0"
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"

    def words(out):
        line = f"-m partita distill --teacher {teacher} --out {out} {sizes} {pace}"
        return [sys.executable, *line.split()]

    reference = start(words(calm))
    for number in (1, 2):  # once in each round, in the middle of it
        process = start(words(disturbed))
        place = disturbed / f"round-{number}"
        assert wait_for(lambda place=place: len(listed(place)) > 1, process)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert not (disturbed / "round-2").exists() or number == 2
    for process in (start(words(disturbed)), reference):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    for number in (1, 2):
        assert compare(calm / f"round-{number}", disturbed / f"round-{number}") == []


def test_a_round_goes_on_with_the_teacher_that_it_began_with(tmp_path, capsys):
    teacher, out = teach(tmp_path), tmp_path / "out"
    distil(teacher, out)
    shutil.rmtree(teacher)
    (tmp_path / "other").mkdir()
    other = teach(tmp_path / "other")
    train(
        replace(
            partita.load(other, device="cpu").recipe,
            training=TrainingOptions(steps=3, batch_size=8, start_from=str(other)),
        ),
        teacher,
    )
    assert main(f"distill --teacher {teacher} --out {out} {QUICK}".split()) == 2
    assert "distillation.teacher: " in capsys.readouterr().err


def test_a_folder_may_move_between_two_rounds(teacher, tmp_path):
    distil(teacher, tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    again = f"{teacher}/"  # another name of the same weights
    distil(again, tmp_path / "there", "--rounds 2")
    assert find(tmp_path / "there") == find(tmp_path / "there" / "round-2")


def test_a_student_that_teaches_is_asked_for_its_own_steps(teacher, tmp_path):
    distil(teacher, tmp_path / "first", "--distillation.steps 16")
    rounds, folder = options(["--teacher", str(tmp_path / "first" / "round-1"), "--rounds", "2"])
    assert [recipe.sampling.steps for recipe in rounds] == [4, 2]
    assert folder.name == "first-round-1-sdtt"


def test_a_signal_after_the_last_step_ends_the_rounds(teacher, tmp_path):
    sizes = "--rounds 2 --training.steps 4 --run.checkpoint_every 4 --run.previews 0"
    line = f"-m partita distill --teacher {teacher} --out {tmp_path}/out {sizes}"
    process = start([sys.executable, *line.split()])
    done = tmp_path / "out" / "round-1" / "checkpoints" / "step-00000004"
    assert wait_for(done.is_dir, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert not checkpoints.listed(tmp_path / "out" / "round-2")


def test_the_words_of_the_training_text_are_found(teacher, tmp_path, capsys):
    distil(teacher, tmp_path / "out")
    capsys.readouterr()
    assert main(f"eval {tmp_path}/out --samples 2 --json".split()) == 0
    assert "known_words" in json.loads(capsys.readouterr().out)["samples"]


def test_without_text_of_its_own_a_student_reads_its_teachers(teacher):
    rounds, folder = options(["--teacher", str(teacher)])
    assert rounds[0].data == partita.load(teacher, device="cpu").recipe.data
    assert folder.name == "mdlm-sdtt"
    rounds, _ = options(["more.txt", "--teacher", str(checkpoints.latest(teacher))])
    assert rounds[0].data.path == "more.txt"


@pytest.mark.parametrize("number", range(1, 5))
def test_the_steps_of_a_round(number):
    found = DistillationOptions(round=number, steps=81, substeps=3)
    assert found.student_steps == 81 // 3**number
    assert found.step_size == pytest.approx(3 ** (number - 1) / 81)


def test_a_student_learns_in_its_teachers_precision(tmp_path):
    teacher = teach(tmp_path, precision="bfloat16")
    words = ["--teacher", str(teacher)]
    assert options(words)[0][0].training.precision == "bfloat16"
    other = [*words, "--training.precision", "float32"]
    assert options(other)[0][0].training.precision == "float32"


def test_the_printed_recipe_is_one(teacher, tmp_path, capsys):
    capsys.readouterr()
    assert main(["distill", "--teacher", str(teacher), "--print_config"]) == 0
    (tmp_path / "recipe.yaml").write_text(capsys.readouterr().out)
    words = ["--teacher", str(teacher)]
    config = ["--config", str(tmp_path / "recipe.yaml")]
    assert options([*words, *config])[0] == options(words)[0]


def test_training_can_be_told_of_a_round_as_well(teacher, tmp_path):
    """`distill` is `train` with a teacher, round by round."""
    out = tmp_path / "out"
    distil(teacher, out)
    recipe = partita.load(out, device="cpu").recipe
    train(replace(recipe, distillation=replace(recipe.distillation, teacher=None)), tmp_path / "x")
    assert all(torch.equal(weights(out)[name], t) for name, t in weights(tmp_path / "x").items())
    with pytest.raises(InputError, match="a student needs a teacher"):
        train(replace(recipe, training=TrainingOptions(steps=3)), tmp_path / "y")
