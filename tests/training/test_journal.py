"""What a run leaves to look at."""

from __future__ import annotations

import json
import math

import pytest

from partita.config.training import RunOptions
from partita.errors import InputError
from partita.training.journal import Journal, read_metrics, services


def png_size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_lines_curves_and_previews(tmp_path):
    journal = Journal(tmp_path, 0, baseline=4.0)
    journal.draw()
    assert not (tmp_path / "curves.png").exists()  # nothing to draw yet
    for step in range(1, 6):
        journal.record(step, {"bits": 5 - step / 2, "rate": 0.1})
    journal.record(5, {"valid_bits": 3.0})
    journal.record(6, {"bits": math.nan, "rate": 0.1})  # a gap in the curve, not an error
    journal.draw()
    assert png_size(tmp_path / "curves.png") == (960, 600)
    journal.on_preview(5, ["one", "two\nlines"])
    assert "--- 2\ntwo\nlines\n" in (tmp_path / "samples/step-00000005.txt").read_text()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 5, 6]
    assert not list(tmp_path.glob("*.partial*"))


def test_a_resumed_journal_forgets_lost_work_and_a_cut_line(tmp_path):
    lines = [json.dumps({"step": step, "bits": 1.0}) for step in range(1, 10)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 10, "bi')
    journal = Journal(tmp_path, 4)
    journal.record(5, {"bits": 2.0})
    assert [(line["step"], line["bits"]) for line in read_metrics(tmp_path)] == [
        (1, 1.0),
        (2, 1.0),
        (3, 1.0),
        (4, 1.0),
        (5, 2.0),
    ]


def test_damaged_metrics_cost_their_own_lines_alone(tmp_path):
    whole = b'{"step": 1}', b'{"step": 2}', b'{"step": 3}', b'{"step": 4}'
    damaged = whole[0], b'{"st\xb9p": 2}', b"\xff\xfe", whole[2], b"[4]", whole[3]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(damaged) + b"\n")
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 3, 4]
    assert [line["step"] for line in Journal(tmp_path, 3).lines] == [1, 3]


def test_tensorboard_hears_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (board,) = services(tmp_path, RunOptions(tensorboard=True), {})
    board.record(3, {"bits": 2.5})
    board.on_end(0)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (scalar,) = events.Scalars("bits")
    assert (scalar.step, scalar.value) == (3, 2.5)


def test_weights_and_biases_hears_the_same_numbers(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the package wandb is not installed (a heavy extra)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (project,) = services(tmp_path, RunOptions(wandb="a-project"), {"seed": 1})
    project.record(1, {"bits": 2.5})
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


@pytest.mark.parametrize(("name", "value"), [("tensorboard", True), ("wandb", "project")])
def test_a_missing_package_says_how_to_get_it(tmp_path, monkeypatch, name, value):
    blocked = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}[name]
    monkeypatch.setitem(__import__("sys").modules, blocked, None)
    with pytest.raises(InputError, match=rf"pip install 'partita\[{name}\]'"):
        services(tmp_path, RunOptions(**{name: value}), {})
