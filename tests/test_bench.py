"""`partita bench`: who takes part, what is counted, what is written. Never how fast."""

from __future__ import annotations

import json

import pytest
import torch

from partita.commands import main
from partita.evaluation.speed import Contestant, Speed, count_flops_of, race
from partita.networks import TransformerOptions
from partita.networks.attention import attend
from partita.networks.layouts import DENSE

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
    assert names == ["mdlm", "mdlm-complementary", "pgm, L x L masks", "pgm, packed"]
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
