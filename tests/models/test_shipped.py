"""The model that every installation comes with: whole, without traces of a machine, and able to do
what it is there for. (How large it may be, `test_package.py` knows; its card, `test_report.py`.)"""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

import partita
from partita.commands import main
from partita.files import format
from partita.models.default import WEIGHTS

PARAGRAPH = (
    "The river rises in the mountains in the north of the country and flows through the city "
    "before it reaches the sea. In the 19th century a railway was built along its banks, and the "
    "population of the town grew from two thousand to more than fifty thousand people."
)
BLANKS = {
    "The river flows into the ____ Sea.": "North",
    "The First World ____ began in the summer of 1914.": "War",
    "He was born in the United ____ of America.": "States",
    "It is one of ____ most important cities of the country.": "the",
    "In the 19th ____, the town had a railway station.": "century",
}


@pytest.fixture(scope="module")
def model():
    return partita.load(device="cpu")


def test_the_folder_is_whole():
    assert format.verify(WEIGHTS)
    stored = safetensors.torch.load_file(WEIGHTS / format.WEIGHTS)
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}


def test_nothing_in_it_names_a_place_on_a_machine():
    def words(found):
        if isinstance(found, dict):
            return [word for value in found.values() for word in words(value)]
        return [found] if isinstance(found, str) else []

    config = json.loads((WEIGHTS / format.CONFIG).read_text())
    assert not [word for word in words(config) if word.startswith(("/", "~", "\\"))]


def test_text_costs_what_it_should(model):
    """Far less than its words in another order, and less than two bits for a character."""
    words = PARAGRAPH.split()
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(0)).tolist()
    text, salad = model.score(PARAGRAPH), model.score(" ".join(words[i] for i in order))
    assert text.bits_per_character < 2
    assert text.bits + 4 * (text.bits_error + salad.bits_error) < salad.bits


@pytest.mark.parametrize("text", BLANKS)
def test_it_knows_words_by_both_sides(model, text):
    filled = model.infill(text, blank_tokens=1, temperature=0, sampler="first-hitting")
    assert filled == [text.replace("____", BLANKS[text])]


def test_it_writes_english(model):
    """Most of its words are words: a sample of the language, not of an alphabet."""
    texts = model.sample(2, length=64, seed=0)
    common = {"the", "of", "and", "in", "to", "a", "is", "was", "by", "for", "with", "as"}
    words = " ".join(texts).lower().split()
    assert len(words) > 40
    assert sum(word in common for word in words) > len(words) / 6
    assert texts == model.sample(2, length=64, seed=0)


def test_what_is_exported_of_it_is_as_small_and_under_the_same_licence(model, tmp_path):
    assert main(["export", "default", str(tmp_path / "copy")]) == 0
    first, second = (
        safetensors.torch.load_file(folder / format.WEIGHTS)
        for folder in (WEIGHTS, tmp_path / "copy")
    )
    # The model in the package has registers of both groups, of which those of the first are read.
    first["network.registers"] = first["network.registers"][: model.recipe.network.registers]
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    stated = {"language": "en", "license": "cc-by-sa-3.0"}
    assert partita.load(tmp_path / "copy", device="cpu").terms == model.terms == stated


def test_verbs_show_it(capsys):
    assert main(["info", "default"]) == 0
    out = capsys.readouterr().out
    assert "pgm" in out
    assert "bpe" in out
