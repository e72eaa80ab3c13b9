"""Texts of any length, from the command line: trained, written, filled in, scored, retrofitted."""

from __future__ import annotations

import io
import json
import math
import random
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import partita
from partita.commands import main
from partita.commands.show import NEW, animated
from partita.commands.terminal import Terminal
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.contracts.packed import PackedTokens
from partita.data.blanks import infill_prompt, opening_prompt
from partita.data.prepare import prepare
from partita.data.tokenizers import CharacterTokenizer
from partita.errors import InputError
from partita.models import checkpoints
from partita.samplers import Step
from partita.samplers.state import SamplerState
from partita.training.checks import check_tokens
from partita.training.conversion import check_conditions, converted
from partita.training.data_pipeline import orders, tokens_of
from tests.support.examples import example
from tests.support.preparing import calling

pytestmark = pytest.mark.usefixtures("here")
LENGTH = 24
FLAGS = (
    "--data.documents line --tokenizer.name characters --network.width 32 --network.depth 2 "
    f"--network.heads 2 --network.length {LENGTH} --training.steps 8 --run.validate_every 4 "
    "--run.checkpoint_every 4"
).split()
MODEL = "runs/lines-flexmdm"
OLD = "runs/lines-mdlm"


def lines():
    chance = random.Random(0)
    words = ["the", "cat", "dog", "sat", "ran", "on", "to", "a", "mat", "door", "and", "then"]
    return [" ".join(chance.choices(words, k=chance.randint(1, 4))) for _ in range(120)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with short lines, a FlexMDM of them, and an MDLM that has choices of its own."""
    folder = tmp_path_factory.mktemp("flexible")
    (folder / "lines.txt").write_text("\n".join(lines()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "lines.txt", "--method.name", "flexmdm", *FLAGS]) == 0
        own = [
            "--method.corruption",
            "subset",
            "--sampling.sampler",
            "confidence",
            "--run.previews",
            "0",
        ]
        assert main(["train", "lines.txt", *FLAGS, *own]) == 0
    return folder


def printed(capsys, *words):
    capsys.readouterr()
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


# Rows --------------------------------------------------------------------------------------------


def rows_of(recipe):
    """The texts of all training and validation rows."""
    recipe = recipe.resolved()
    prepared = tokens_of(recipe, callback=calling(on_tokens=partial(check_tokens, recipe)))
    texts = []
    for order in orders(recipe, prepared):
        batch = order.first(len(order.rows))
        assert batch.ends is None
        pairs = zip(batch.tokens, batch.is_token, strict=True)
        texts += [prepared.tokenizer.decode(tokens[real].tolist()) for tokens, real in pairs]
    return texts


def flexible(**keys):
    content = {"path": "lines.txt", "documents": "line", **keys}
    recipe = Recipe.from_dict({"data": content, "method": {"name": "flexmdm"}})
    return replace(recipe, network=replace(recipe.network, length=LENGTH))


def test_rows_are_whole_texts_without_what_parts_them():
    assert sorted(rows_of(flexible())) == sorted(lines())


def test_longer_texts_are_refused_skipped_or_cut():
    short = flexible(longer="skip")
    short = replace(short, network=replace(short.network, length=10))
    assert sorted(rows_of(short)) == sorted(line for line in lines() if len(line) <= 10)
    pieces = [line[i : i + 10] for line in lines() for i in range(0, len(line), 10)]
    cut = replace(short, data=replace(short.data, longer="cut"))
    assert sorted(rows_of(cut)) == sorted(pieces)
    refused = replace(short, data=replace(short.data, longer=None))
    many, longest = sum(len(line) > 10 for line in lines()), max(map(len, lines()))
    problem = f"{many} of 120 documents have more than 10 tokens, the longest {longest}; give "
    with pytest.raises(InputError, match=f"{problem}--network.length {longest}"):
        rows_of(refused)


def test_rows_follow_the_method_unless_they_are_given():
    assert Recipe().resolved().data.rows == "packed"
    assert flexible().resolved().data.rows == "padded"
    assert flexible().resolved().data.longer == "refuse"
    padded = Recipe.from_dict({"data": {"rows": "padded"}}).resolved()
    assert (padded.data.rows, padded.data.longer) == ("padded", None)


def test_a_run_from_before_there_was_a_choice_goes_on(here, capsys):
    """Its recipe says which rows it has, and nothing of longer documents."""
    path = here / OLD / "recipe.json"
    content = json.loads(path.read_text())
    assert content["recipe"]["data"]["rows"] == "packed"
    assert content["recipe"]["data"].pop("longer") is None
    path.write_text(json.dumps(content))
    own = [
        "--method.corruption",
        "subset",
        "--sampling.sampler",
        "confidence",
        "--run.previews",
        "0",
    ]
    assert main(["train", "lines.txt", *FLAGS, *own]) == 0
    assert "nothing was left to do" in capsys.readouterr().out


def test_an_examination_that_fails_leaves_nothing_behind(tmp_path):
    def refuse(_prepared):
        raise InputError("rows", "do not please")

    with pytest.raises(InputError, match="do not please"):
        prepare(flexible().data.corpus(), tmp_path / "cache", callback=calling(on_tokens=refuse))
    assert not (tmp_path / "cache").exists()


# Texts -------------------------------------------------------------------------------------------


def test_texts_have_a_length_of_their_own(capsys):
    model = partita.load(MODEL)
    texts = printed(capsys, "sample", MODEL, "--count", "16", "--seed", "3", "--json")["texts"]
    assert texts == model.sample(16, seed=3)
    assert len({len(text) for text in texts}) > 1
    assert all(len(text) <= LENGTH for text in texts)
    short = printed(capsys, "sample", MODEL, "--count", "16", "--length", "3", "--json")["texts"]
    assert max(map(len, short)) == 3


def test_a_prompt_goes_on_to_wherever_the_text_ends(capsys):
    words = ["sample", MODEL, "--count", "16", "--prompt", "the cat", "--steps", "32", "--json"]
    texts = printed(capsys, *words)["texts"]
    assert all(text.startswith("the cat") for text in texts)
    assert len({len(text) for text in texts}) > 1
    texts = printed(capsys, *words, "--length", "9")["texts"]
    assert all(len(text) <= 9 for text in texts)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("the ____ sat", "the (.*) sat"),
        ("____", "(.*)"),
        ("____ cat ____", "(.*) cat (.*)"),
        ("a __3__ on ____ mat", "a (.{3}) on (.*) mat"),
    ],
)
def test_flexible_blanks_take_any_number_of_tokens(capsys, text, pattern):
    words = ["infill", MODEL, text, "--flexible", "--count", "24", "--steps", "24", "--json"]
    texts = printed(capsys, *words)["texts"]
    assert texts == partita.load(MODEL).infill(text, 24, flexible=True, steps=24)
    found = [re.fullmatch(pattern, filled, re.DOTALL) for filled in texts]
    assert all(found), texts
    sizes = {len(match[match.lastindex]) for match in found}
    assert len(sizes) > 2
    assert 0 in sizes


def test_without_flexible_blanks_keep_their_size(capsys):
    texts = printed(capsys, "infill", MODEL, "a ____ on __2__", "--count", "4", "--json")["texts"]
    assert all(re.fullmatch("a .{4} on .{2}", text, re.DOTALL) for text in texts)


def test_prompts_say_where_texts_may_grow():
    bytes_of = partita.ByteTokenizer()
    prompt = infill_prompt(bytes_of, "a____b__2__", flexible=True)
    assert prompt.known.tolist() == [[True, True, False, False]]
    assert prompt.open.tolist() == [[False, True, False, False, False]]
    assert infill_prompt(bytes_of, "a____").open is None
    assert infill_prompt(bytes_of, "____", flexible=True).tokens.shape == (1, 0)
    assert opening_prompt(bytes_of, "ab", 9, flexible=True).open.tolist() == [[False, False, True]]


def test_showing_ends_with_the_text(capsys):
    assert main(["sample", MODEL, "--show", "--seed", "2"]) == 0
    (text,) = partita.load(MODEL).sample(1, seed=2)
    frames = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert 2 <= len(frames) <= 6
    assert frames[-1] == text
    assert any("▒" in frame for frame in frames)


class Kept(Terminal):
    """Keeps what is written on it."""

    def __init__(self):
        super().__init__()
        self.file, self.pictures = io.StringIO(), []

    def write(self, *parts, **_options):
        self.pictures.append(parts)


def test_what_is_new_is_coloured_wherever_it_has_moved():
    """Two frames of four steps; in the second one a has moved, b and c are new since the first."""
    states = ["?", "a?", "?a", "bac?"], [[], [0], [], [0, 2]]
    letters = CharacterTokenizer("abc")
    console = Kept()
    with animated(console, letters) as show:
        for index, (letters, places) in enumerate(zip(*states, strict=True)):
            tokens = torch.tensor(
                [[3 if letter == "?" else "abc".index(letter) for letter in letters]]
            )
            state = SamplerState(
                tokens, tokens < 3, tokens == 3, lengths=torch.tensor([tokens.shape[1]])
            )
            rows, positions = torch.zeros(len(places), dtype=torch.int64), torch.tensor(places)
            show(Step(index, 8, state, rows, positions.long()))
    styled = [
        (
            "".join(text for text, _ in parts),
            [text for text, style in parts if text and style == NEW],
        )
        for parts in console.pictures
    ]
    assert styled == [("a▒", ["a"]), ("bac▒", ["b", "c"])]


# Likelihood --------------------------------------------------------------------------------------


def test_an_empty_text_has_bits_but_none_per_character(capsys):
    empty, other = printed(capsys, "score", MODEL, "", "the cat", "--replicates", "64", "--json")
    assert (empty["tokens"], empty["characters"]) == (0, 0)
    assert empty["bits_per_character"] is None
    assert empty["perplexity"] is None
    assert other["bits_per_character"] == pytest.approx(other["bits"] / 7)
    # Its bound is the integral of the rate at which anything would come.
    method = partita.load(MODEL).method
    t = (torch.arange(2000).double() + 0.5) / 2000
    nothing = torch.zeros(0, dtype=torch.int64)
    with torch.no_grad():
        _, answer = method.ask(
            PackedTokens.of_texts(nothing, torch.zeros(2000, dtype=torch.int64)), t, nothing
        )
    bits = float((method.process.insertion.weight(t) * answer.gaps).mean()) / math.log(2)
    assert empty["bits"] == pytest.approx(bits, abs=5 * empty["bits_error"] + 0.05)
    assert main(["score", MODEL, ""]) == 0
    assert "none" in capsys.readouterr().out


def test_evaluation_is_of_whole_texts(capsys):
    words = ["eval", MODEL, "lines.txt", "--samples", "6", "--json"]
    results = printed(capsys, *words)
    likelihood = results["likelihood"]
    assert likelihood["tokens"] == likelihood["characters"] == sum(map(len, lines()))
    assert results["samples"]["count"] == 6
    limited = printed(capsys, *words, "--limit", "20")["likelihood"]
    sizes = [len(line) for line in lines()]
    whole = next(sum(sizes[:n]) for n in range(1, 120) if sum(sizes[:n]) >= 20)
    assert limited["tokens"] == whole


def test_an_exported_model_is_the_model(capsys, tmp_path):
    out = str(tmp_path / "exported")
    assert main(["export", MODEL, out]) == 0
    old, new = partita.load(MODEL), partita.load(out)
    assert new.sample(2, seed=1) == old.sample(2, seed=1)
    assert new.score("the cat") == old.score("the cat")
    assert "flexible=True" in Path(out, "README.md").read_text()
    facts = printed(capsys, "info", MODEL, "--json")
    assert facts["recipe"]["data"]["rows"] == "padded"


# From a masked model -----------------------------------------------------------------------------

RETROFIT = ["train", "lines.txt", "--from", OLD, "--method.name", "flexmdm"]
RETROFIT += ["--data.documents", "line", "--run.previews", "1"]


def test_a_retrofitted_network_computes_what_the_old_one_did():
    """The end marker starts as one more mask: so the old model is asked with one more mask."""
    model = partita.load(OLD, device="cpu")
    recipe = replace(model.recipe, method=MethodOptions("flexmdm"))
    new, old = converted(recipe, model), model.method
    tokens = torch.tensor([model.tokenizer.encode("the cat sat on a mat")])
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.4
    ended, mask = torch.cat([tokens, tokens[:, :1]], 1), torch.ones(1, 1, dtype=torch.bool)
    rows, positions = hidden.nonzero(as_tuple=True)
    with torch.no_grad():
        expected = old.predict(ended, ~torch.cat([hidden, mask], 1), rows, positions)
        text = PackedTokens.of_texts(
            torch.where(hidden, new.mask_id, tokens)[0], torch.tensor([tokens.shape[1]])
        )
        for t in (0.1, 0.9):
            found, answer = new.ask(text, torch.tensor([t]), positions)
            torch.testing.assert_close(found, expected[:, : old.mask_id], rtol=0, atol=2e-5)
    assert float(expected[:, : old.mask_id].std()) > 0.05  # they do say something
    torch.testing.assert_close(answer.gaps, torch.ones(tokens.shape[1] + 1))


def test_training_goes_on_from_the_old_weights(here):
    out = "runs/retrofitted"
    assert main([*RETROFIT, "--out", out, "--training.steps", "4"]) == 0
    new, old = partita.load(out), partita.load(OLD)
    assert new.tokenizer.describe() == old.tokenizer.describe()
    assert new.recipe.method == MethodOptions("flexmdm")  # without the choices of mdlm
    assert new.recipe.sampling.sampler is None
    assert new.provenance["started_from"]["path"] == OLD
    assert len(new.sample(3)) == 3
    start = converted(new.recipe, old)
    moved = dict(new.method.named_parameters())
    for name, tensor in start.named_parameters():
        assert not torch.equal(moved[name], tensor), name
        assert float((moved[name] - tensor).detach().norm()) < 3, name
    before = len((here / out / "metrics.jsonl").read_text().splitlines())
    assert main([*RETROFIT, "--out", out, "--training.steps", "4"]) == 0  # nothing left to do
    assert len((here / out / "metrics.jsonl").read_text().splitlines()) == before
    assert checkpoints.latest(here / out).name == "step-00000004"


def test_a_retrofitted_model_may_be_longer():
    more = ["--out", "runs/longer", "--network.length", "40", "--training.steps", "1"]
    assert main([*RETROFIT, *more]) == 0
    assert partita.load("runs/longer").length == 40


def test_what_cannot_be_taken_over_is_refused():
    base = partita.load(OLD).recipe
    flexible = replace(base, method=MethodOptions("flexmdm"))
    timed = replace(
        base, method=MethodOptions("mdlm", corruption="continuous", conditioning="time")
    )
    with pytest.raises(InputError, match="takes the time of another process as an input"):
        check_conditions(flexible, timed, "somewhere")
    labelled = replace(base, network=replace(base.network, classes=3))
    with pytest.raises(InputError, match="has class labels, which cannot be taken over"):
        check_conditions(flexible, labelled, "somewhere")


# The example -------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples" / "lengths.py"


def test_the_example_compares_lengths(tmp_path):
    """Every line of this text has the same length, so chance makes no difference."""
    (tmp_path / "lines.txt").write_text("the cat\n" * 20)
    words = [str(tmp_path / "lines.txt"), str(tmp_path / "lengths.png"), "--flexible", MODEL]
    out = tmp_path / "lengths.json"
    more = ["--padded", OLD, "--pad", "x", "--count", "9", "--steps", "4", "--out", str(out)]
    command = [sys.executable, str(EXAMPLE), *words, *more]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "as many lines of the data: total variation 0.000" in result.stdout
    whole = f"lines-mdlm: total variation 1.000, mean length {LENGTH}.0"  # there is no x in it
    assert whole in result.stdout
    rows = json.loads(out.read_text())["rows"]
    names = ["data", "as many lines of the data", "lines-flexmdm", "lines-mdlm"]
    assert [row["name"] for row in rows] == names
    assert rows[0]["shares"] == [[1, 1.0]]  # seven characters: the second bin of four
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")


def test_sentences_each_once_and_filled_up(tmp_path, monkeypatch, capsys):
    """Sentences of the text that fit, in an order of their own; nothing else."""
    text = "It rains. It rains. Too long to be of any use here! Why?\nNo end\n\nOnce | more."
    (tmp_path / "text.txt").write_text(text)
    out = tmp_path / "out.txt"

    def made(*more):
        words = [str(tmp_path / "text.txt"), str(out), "--longest", "12", *more]
        monkeypatch.setattr(sys, "argv", ["make_sentences.py", *words])
        runpy.run_path(str(EXAMPLE.with_name("make_sentences.py")), run_name="__main__")
        return sorted(out.read_text().splitlines())

    assert made() == ["It rains.", "Once | more.", "Why?"]
    assert made("--fill", "|") == ["It rains.|||", "Why?||||||||"]
    for words, problem in (("--fill ||", "takes one character"), ("--longest 3", "at most 3")):
        with pytest.raises(SystemExit):
            made(*words.split())
        assert problem in capsys.readouterr().err


def test_histograms_of_lengths():
    lengths = example("lengths")
    shares, variation = lengths.shares, lengths.variation
    ours, theirs = shares([0, 3, 4, 9]), shares([4, 5, 6, 100])
    assert ours == {0: 0.5, 1: 0.25, 2: 0.25}
    assert variation(ours, theirs) == pytest.approx(0.75)
    assert variation(ours, ours) == 0
    with pytest.raises(InputError, match="there is no text"):
        shares([])
