"""GenMD4's report of what it learned, and its memory at the size of a real vocabulary."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap

import pytest
import torch
from rich.console import Console

from partita.data.tokenizers import ByteTokenizer, CharacterTokenizer
from partita.errors import InputError
from partita.methods.genmd4 import GenMD4
from partita.networks.options import TransformerOptions
from partita.studies.schedules import draw_schedules, extremes, schedule_table

ALPHABET = "abc d$[é"
POWERS = [1.0, 0.25, 3.0, 1.5, 2.0, 4.0, 0.125, 1.0]


def model_with(powers) -> GenMD4:
    options = TransformerOptions(length=4, width=8, depth=1, heads=1)
    model = GenMD4.build(options, len(powers))
    with torch.no_grad():
        model.raw.copy_(torch.tensor(powers, dtype=torch.float64).expm1().log())
    return model


def png_size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_extremes_come_in_order():
    found = extremes(model_with(POWERS), CharacterTokenizer(ALPHABET), 3)
    assert [(row.text, row.token) for row in found.smallest] == [("[", 6), ("b", 1), ("a", 0)]
    assert [(row.text, row.token) for row in found.largest] == [("$", 5), ("c", 2), ("d", 4)]
    assert [row.exponent for row in found.largest] == pytest.approx([4.0, 3.0, 2.0], rel=1e-6)


@pytest.mark.parametrize("count", [1, 4, 5, 100])
def test_no_token_is_on_both_sides(count):
    found = extremes(model_with(POWERS), CharacterTokenizer(ALPHABET), count)
    ids = [row.token for row in (*found.smallest, *found.largest)]
    assert len(ids) == len(set(ids)) == min(2 * count, len(POWERS))


def test_the_table_shows_texts_as_they_are():
    table = schedule_table(extremes(model_with(POWERS), CharacterTokenizer(ALPHABET), 4))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    for shown in ("'['", "'$'", "'é'", "' '", "0.1250", "4.0000"):
        assert shown in text
    assert table.row_count == 4


def test_an_odd_vocabulary_leaves_a_cell_empty():
    table = schedule_table(extremes(model_with(POWERS[:3]), CharacterTokenizer("abc"), 10))
    assert table.row_count == 2


def test_the_picture_is_written_whole(tmp_path):
    path = tmp_path / "new" / "schedules.png"
    model = model_with(POWERS)
    draw_schedules(model, extremes(model, CharacterTokenizer(ALPHABET)), path, 3)
    assert png_size(path) == (960, 600)
    assert [entry.name for entry in path.parent.iterdir()] == ["schedules.png"]


def test_bytes_that_are_no_text_can_be_drawn(tmp_path):
    model = model_with([1 + token / 256 for token in range(256)])
    found = extremes(model, ByteTokenizer())
    draw_schedules(model, found, str(tmp_path / "a.png"))
    assert found.largest[0].token == 255
    assert png_size(tmp_path / "a.png") == (960, 600)


def test_bad_input_is_refused(tmp_path):
    model, tokenizer = model_with(POWERS), CharacterTokenizer(ALPHABET)
    with pytest.raises(InputError, match="count: must be at least 1"):
        extremes(model, tokenizer, 0)
    with pytest.raises(InputError, match="tokenizer: has 256 tokens, the model has 8"):
        extremes(model, ByteTokenizer())
    with pytest.raises(InputError, match=r"path: .* is a folder"):
        draw_schedules(model, extremes(model, tokenizer), tmp_path)


PROGRAM = """
    import json, resource, torch
    from partita.contracts.batch import Batch
    from partita.methods.genmd4 import GenMD4
    from partita.networks.options import TransformerOptions
    from partita.randomness import Noise

    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = TransformerOptions(length=256, width=32, depth=1, heads=2)
    # Tiny exponents hide nearly every token, both times: the most that can be asked for.
    model = GenMD4.build(options, 50258, schedule_options={"exponent": 0.001})
    tokens = torch.randint(0, 50258, (2, 256))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loss = model.loss(Batch.of(tokens), Noise.for_batch(0, 2))
    loss.objective.backward()
    print(json.dumps({
        "hidden": int(loss.counted.sum()),
        "finite": bool(torch.isfinite(model.raw.grad).all()),
        "before": before / 2**20,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }))
"""


def test_a_real_vocabulary_fits_in_memory():
    """50,258 tokens, 2 x 256 positions, loss and gradient: less than 3 GB in all."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["hidden"] > 500
    assert found["finite"]
    assert found["peak"] < 3 * 10**9 / 2**30, found
