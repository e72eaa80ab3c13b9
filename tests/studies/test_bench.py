"""`partita bench`: who takes part, what is counted, what is written. Never how fast."""

from __future__ import annotations

import json

import pytest
import torch

from partita.commands import main
from partita.contracts.layouts import DENSE
from partita.execution.choice import sample
from partita.methods import METHODS
from partita.networks import TransformerOptions
from partita.networks.attention import attend
from partita.studies import growth
from partita.studies.speed import Contestant, Speed, count_flops_of, race, sampling_work

SMALL = "--network.width 16 --network.length 8 --network.heads 2 --network.depth 2 --vocabulary 11"


def test_a_table_and_json_with_everything_that_they_depend_on(tmp_path, capsys):
    out = tmp_path / "new" / "speed.json"
    words = f"{SMALL} --batch_size 4 --steps 2 --turns 2 --lengths [8,16] --flops --device cpu"
    assert main(["bench", *words.split(), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    results = json.loads(out.read_text())
    assert set(results["environment"]) >= {"date", "device", "torch", "partita", "python"}
    assert results["options"]["network"]["width"] == 16
    titles = ["Sampling 4 x 8 tokens in 2 steps"]
    titles += ["Training on 4 x 8 tokens", "Training on 2 x 16 tokens"]
    tables = results["sampling"] | results["training"]
    assert list(tables) == titles
    for title, rows in tables.items():
        assert title in printed
        for row in rows:
            assert row["name"] in printed
            assert len(row["seconds"]) == 2
            assert row["flops"] > 0
            assert row["tokens_per_second"] == pytest.approx(
                row["tokens"] / _median(row["seconds"])
            )
    names = [row["name"] for row in tables[titles[0]]]
    assert names == ["mdlm, ancestral", "pgm, ancestral", "pgm, ordered"]
    names = [row["name"] for row in tables[titles[1]]]
    assert names == ["mdlm", "mdlm-complementary", "pgm, packed"]
    assert {row["tokens"] for row in tables[titles[0]]} == {32}
    assert {row["tokens"] for row in tables[titles[1]] + tables[titles[2]]} == {64}


def _median(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def test_one_subject_as_json_alone(capsys):
    words = f"sampling {SMALL} --steps 2 --turns 1 --json --device cpu"
    assert main(["bench", *words.split()]) == 0
    results = json.loads(capsys.readouterr().out)
    assert "training" not in results
    assert set(results["options"]["network"]) == set(vars(TransformerOptions()))


def test_contestants_take_turns():
    order = []

    def contestant(name):
        return Contestant(
            name, lambda: order.append(name) or 7, lambda: order.append(f"warm {name}")
        )

    speeds = race([contestant("a"), contestant("b")], torch.device("cpu"), turns=2)
    assert order == ["warm a", "warm b", "a", "b", "a", "b"]
    assert [(speed.name, speed.tokens, len(speed.seconds)) for speed in speeds] == [
        ("a", 7, 2),
        ("b", 7, 2),
    ]
    assert Speed("a", [1.0, 4.0, 2.0], 8).tokens_per_second == 4


def test_flops_of_attention_on_a_cpu_are_counted():
    """Two products forward; backward the first once more, and two for each of them."""
    query, key, value = torch.randn(3, 2, 5, 3, 4).requires_grad_()  # rows, length, heads, width
    product = 2 * 2 * 3 * 5 * 5 * 4
    assert count_flops_of(lambda: attend(query, key, value, DENSE)) == 2 * product
    backward = count_flops_of(lambda: attend(query, key, value, DENSE).sum().backward())
    assert backward == (2 + 5) * product


@pytest.mark.parametrize("name", ["mdlm", "pgm"])
def test_the_work_of_a_sampler_is_what_it_does(name):
    """Counted operations against the formula, where steps reveal equally many tokens."""
    options = TransformerOptions(length=32, width=64, depth=4, heads=2)
    method = METHODS[name].build(options, 50).eval()
    counted = count_flops_of(lambda: sample(method, 3, sampler="ordered", steps=8, speed="eager"))
    work = sampling_work(method.network, 3, 32, 8, bytes_each=2)
    # Queries of a partition network are made once for each position: a few more operations.
    assert work.flops == pytest.approx(counted, rel=1e-9 if name == "mdlm" else 0.02)
    read = sum(p.numel() for n, p in method.network.named_parameters() if p.ndim > 1)
    assert work.weight_bytes == 8 * 2 * (read - method.network.embed.weight.numel())


def test_an_axis_may_be_left_out(tmp_path):
    out, picture = tmp_path / "growth.json", tmp_path / "growth.png"
    axes = "--growth_lengths [8,16] --growth_batches [] --growth_steps []"
    words = f"growth {SMALL} {axes} --batch_size 2 --steps 2 --turns 1 --device cpu"
    assert main(["bench", *words.split(), "--out", str(out), "--picture", str(picture)]) == 0
    assert [t.split()[0] for t in json.loads(out.read_text())["growth"]] == ["length"] * 2
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_what_is_measured_is_written_before_the_rest(tmp_path, monkeypatch):
    """Somebody who stops a long run keeps the tables that are there."""
    out, told = tmp_path / "growth.json", []

    def stopped(*given, **options):
        told.append(1)
        if len(told) == 2:
            raise KeyboardInterrupt
        return race(*given, **options)

    monkeypatch.setattr(growth, "race", stopped)
    words = f"growth {SMALL} --growth_lengths [8,16] --batch_size 2 --steps 2 --turns 1"
    assert main(["bench", *words.split(), "--device", "cpu", "--out", str(out)]) == 130
    assert len(json.loads(out.read_text())["growth"]) == 1


def test_growth_along_each_axis(tmp_path, capsys):
    out, picture = tmp_path / "growth.json", tmp_path / "growth.png"
    axes = "--growth_lengths [8,16] --growth_batches [1,2,4] --growth_steps [2,4]"
    words = f"growth {SMALL} {axes} --batch_size 2 --steps 2 --turns 1 --device cpu"
    files = ["--out", str(out), "--picture", str(picture)]
    assert main(["bench", *words.split(), "--speeds", "[cudagraph]", *files]) == 0
    tables = json.loads(out.read_text())["growth"]
    assert "length 8 (batch 2, steps 2)" in tables
    tables = {title.split(" (")[0]: rows for title, rows in tables.items()}
    assert list(tables) == [
        *("length 8", "length 16"),
        *("batch 1", "batch 2", "batch 4"),
        *("steps 2", "steps 4"),
    ]
    assert [row["tokens"] for row in tables["length 16"]] == [32, 32]
    assert [row["tokens"] for row in tables["batch 4"]] == [32, 32]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "growth as curves" in capsys.readouterr().out


def test_speeds_are_named_and_timed(capsys):
    words = f"sampling {SMALL} --steps 2 --turns 1 --json --device cpu --speeds [eager,cudagraph]"
    assert main(["bench", *words.split()]) == 0
    (rows,) = json.loads(capsys.readouterr().out)["sampling"].values()
    assert [row["name"].rsplit(", ", 1)[1] for row in rows] == ["eager", "cudagraph"] * 3
    assert all(row["first"] > 0 and row["shares"] == {} for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--speeds [warp]", "--speeds: unknown name 'warp'"),
        ("--speeds []", "--speeds: is empty"),
        ("--speeds cudagraph", "--speeds: must be a list, such as [first,second]"),
        ("--speeds [captured]", "--speeds: 'captured' has another name now; write cudagraph"),
        ("--speeds [cudagraph]", "--speeds: steps of training are captured on a GPU alone"),
        (
            "growth --growth_lengths [] --growth_batches [] --growth_steps []",
            "subjects: growth has no axis left",
        ),
        ("sampling sampling", "subjects: 'sampling' is there twice"),
        ("--speeds [eager,eager]", "--speeds: 'eager' is there twice"),
        ("sampling --picture a.png", "--picture: draws growth, which is not measured"),
        ("growth --picture a.jpg", "--picture: a.jpg would hold a PNG"),
    ],
)
def test_what_bench_refuses(words, message, capsys):
    assert main(["bench", *words.split()]) == 2
    assert f"partita: {message}" in capsys.readouterr().err
