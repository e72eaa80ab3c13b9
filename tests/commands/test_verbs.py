"""What the verbs print for machines is what the library computes."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from pathlib import Path

import pytest
import torch
import yaml
from rich.progress import Progress

import partita
from partita.commands import main
from partita.commands.streams import printable
from partita.config.data import DataOptions, TokenizerOptions
from partita.config.method import own_options, parameters_of
from partita.config.recipe import Recipe
from partita.config.training import TrainingOptions
from partita.data.blanks import infill_prompt
from partita.data.scored_rows import windows
from partita.errors import InputError
from partita.methods import METHODS
from partita.models import checkpoints
from partita.samplers import SAMPLERS
from partita.studies.consistency import score_consistency
from tests.support.kill_and_resume import corpus

pytestmark = pytest.mark.usefixtures("here")
FLAGS = {
    "--network.width": "32",
    "--network.depth": "1",
    "--network.heads": "2",
    "--network.length": "24",
    "--training.steps": "8",
    "--run.validate_every": "4",
    "--run.checkpoint_every": "4",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text and two trained models: an mdlm and an autoregressive judge."""
    folder = tmp_path_factory.mktemp("verbs")
    corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for method in ("mdlm", "ar"):
            words = ["train", "corpus.txt", "--method.name", method]
            assert main(words + [word for pair in FLAGS.items() for word in pair]) == 0
    return folder


def printed(capsys, *words):
    capsys.readouterr()
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


def test_samples_are_those_of_the_library(capsys):
    model = partita.load("runs/corpus-mdlm")
    words = ["sample", "runs/corpus-mdlm", "--count", "3", "--seed", "5", "--json"]
    assert printed(capsys, *words) == {"texts": model.sample(3, seed=5)}
    words += ["--sampler", "confidence", "--steps", "4", "--options.counts", "linear"]
    expected = model.sample(3, seed=5, sampler="confidence", steps=4, counts="linear")
    assert printed(capsys, *words) == {"texts": expected}
    begun = printed(capsys, "sample", "runs/corpus-ar", "--prompt", "the c", "--json")["texts"]
    assert begun[0].startswith("the c")


def test_showing_ends_with_the_text(capsys):
    assert main(["sample", "runs/corpus-mdlm", "--show", "--seed", "2"]) == 0
    (text,) = partita.load("runs/corpus-mdlm").sample(1, seed=2)
    out = capsys.readouterr().out
    assert "▒" in out
    assert text.split("\n")[0].strip()[:10] in out


@pytest.mark.parametrize("words", [["sample"], ["infill", "the __3__ sat"]], ids=lambda x: x[0])
def test_showing_rules_off_the_texts_after_the_first(words, capsys):
    verb, *text = words
    assert main([verb, "runs/corpus-mdlm", *text, "--show", "--count", "3", "--seed", "2"]) == 0
    model = partita.load("runs/corpus-mdlm")
    texts = model.infill(*text, 3, seed=2) if text else model.sample(3, seed=2)
    _, *others = re.split("\n─+\n", capsys.readouterr().out)
    assert others == [texts[1], f"{texts[2]}\n"]


def test_showing_leaves_json_alone(capsys):
    words = ["sample", "runs/corpus-mdlm", "--show", "--json", "--seed", "2"]
    assert printed(capsys, *words) == {"texts": partita.load("runs/corpus-mdlm").sample(1, seed=2)}


def test_what_would_move_the_cursor_is_shown_as_a_picture():
    assert printable("a\tb\nc\x1b[2Jd\x00e\x7f\x9b") == "a\tb\nc␛[2Jd␀e␡�"


def test_infilling_keeps_what_is_known(capsys):
    words = ["infill", "runs/corpus-mdlm", "the __3__ sat ____ mat", "--count", "4", "--json"]
    texts = printed(capsys, *words)["texts"]
    model = partita.load("runs/corpus-mdlm")
    assert texts == model.infill("the __3__ sat ____ mat", 4)
    assert len(texts) == 4
    for text in texts:
        assert text.startswith("the ")
        assert " sat " in text
        assert text.endswith(" mat")


def test_blanks_have_the_sizes_that_are_asked_for():
    bytes_of = partita.ByteTokenizer()
    for text, tokens, sizes in (
        ("a ____ b", None, [4]),
        ("a __12__ b", None, [12]),
        ("a ____ b __3__", 9, [9, 3]),
    ):
        known = infill_prompt(bytes_of, text, tokens).known[0].tolist()
        runs = [len(run) for run in "".join("k" if k else "." for k in known).split("k") if run]
        assert runs == sizes


def test_scores_are_bounds_and_exact_for_ar(capsys, monkeypatch):
    text = "the cat sat on the mat and then ran to a door"  # longer than the models
    (score,) = printed(capsys, "score", "runs/corpus-ar", text, "--json")
    model = partita.load("runs/corpus-ar")
    ids = torch.tensor(model.tokenizer.encode(text))
    nats = sum(
        float(model.method.loss(partita.Batch.of(part[None])).per_token.sum())
        for part in ids.split(model.length)
    )
    assert score["bits"] == pytest.approx(nats / math.log(2), rel=1e-5)
    assert score["bits_error"] == 0
    assert score["exact"]
    assert score["windows"] == 2
    assert score["bits_per_character"] == pytest.approx(score["bits"] / len(text))
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{text}\n\nqqq\n"))
    both = printed(capsys, "score", "runs/corpus-mdlm", "--file", "-", "--json")
    assert [line["text"] for line in both] == [text, "qqq"]
    assert all(line["bits_error"] > 0 for line in both)
    assert both[0]["bits_per_character"] < both[1]["bits_per_character"]
    assert [(line["exact"], line["windows"]) for line in both] == [(False, 2), (False, 1)]


@pytest.mark.parametrize(("method", "what"), [("mdlm", "at most"), ("ar", "exact")])
def test_scores_say_whether_they_are_bounds_and_of_windows(method, what, capsys):
    for text, cut in (("the cat", False), ("the cat sat on the mat and ran", True)):
        assert main(["score", f"runs/corpus-{method}", text]) == 0
        out = capsys.readouterr().out
        assert f"bits ({what})" in out
        assert ("A text of more than 24 tokens is cut into windows" in out) == cut


def test_scores_of_several_texts_are_those_of_each():
    model = partita.load("runs/corpus-mdlm")
    texts = ["the cat", "a mat"]
    assert model.score(texts, seed=3) == [model.score(text, seed=3) for text in texts]
    assert model.score([]) == []
    with pytest.raises(InputError, match="text: text 2: is empty"):
        model.score(["the cat", ""])


def test_a_model_is_printed_in_one_line():
    model = partita.load("runs/corpus-mdlm")
    count = sum(p.numel() for p in model.method.parameters())
    assert repr(model) == f"TextModel(mdlm, {count:,} parameters, 256 tokens, length 24)"


@pytest.mark.usefixtures("here")
def test_evaluation_in_an_order(capsys):
    words = ["eval", "runs/corpus-mdlm", "corpus.txt", "--limit", "90", "--samples", "0"]
    results = printed(capsys, *words, "--order", "left-to-right", "--json")
    cost, bound = results["in_order"], results["likelihood"]
    assert cost["exact"]
    assert not bound["exact"]
    assert cost["tokens"] == bound["tokens"] == 90
    assert 0.5 < cost["bits_per_character"] / bound["bits_per_character"] < 2
    assert main([*words, "--order", "random"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "random │ one token at a time (exact for the orders of this seed)" in out


def test_evaluation(here, capsys):
    words = ["eval", "runs/corpus-mdlm", "corpus.txt", "--limit", "2000", "--samples", "6"]
    words += ["--judge", "runs/corpus-ar", "--out", "results.json", "--json"]
    results = printed(capsys, *words)
    assert json.loads((here / "results.json").read_text()) == results
    likelihood, samples = results["likelihood"], results["samples"]
    assert likelihood["tokens"] == likelihood["characters"] == 2000  # bytes of plain text
    assert likelihood["bits_per_token"] == pytest.approx(likelihood["bits_per_character"])
    assert likelihood["perplexity"] == pytest.approx(2 ** likelihood["bits_per_token"])
    assert 0 < likelihood["bits_per_character_error"] < 0.2
    assert samples["count"] == 6
    assert 0 <= samples["known_words"] <= 1
    assert 0 < samples["distinct_1"] < samples["distinct_3"] <= 1
    weights = checkpoints.best(here / "runs/corpus-ar") / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert samples["judge"]["sha256"] == digest
    assert samples["judge"]["perplexity"] > 1
    assert {"date", "torch", "partita", "device"} <= set(results["environment"])
    assert results["sampling"]["sampler"] == "ancestral"  # also what the recipe says
    cold = printed(
        capsys, "eval", "runs/corpus-mdlm", "--samples", "6", "--temperature", "0", "--json"
    )
    assert cold["sampling"] == results["sampling"] | {"temperature": 0.0}
    entropy = "unigram_entropy_bits"
    assert cold["samples"][entropy] < samples[entropy]
    assert main(["eval", "runs/corpus-mdlm", "corpus.txt", "--limit", "99", "--samples", "2"]) == 0
    assert "bits per character" in capsys.readouterr().out


def test_progress_of_texts_is_shown_at_each_step(monkeypatch, capsys):
    words = ["eval", "runs/corpus-mdlm", "--samples", "4", "--steps", "8"]
    assert main(words) == 0
    assert "Writing 4 texts" in capsys.readouterr().out
    seen = []
    update = Progress.update
    monkeypatch.setattr(
        Progress,
        "update",
        lambda bar, task, **what: seen.append(what["completed"]) or update(bar, task, **what),
    )
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    assert main(words) == 0
    assert seen == [*(step / 2 for step in range(1, 9)), 4]
    assert "Writing 4 texts" not in capsys.readouterr().out


def test_likelihood_of_ar_is_exact_and_has_no_error(capsys):
    words = ["eval", "runs/corpus-ar", "corpus.txt", "--limit", "500", "--samples", "0", "--json"]
    likelihood = printed(capsys, *words)["likelihood"]
    assert likelihood["exact"]
    assert likelihood["perplexity_error"] == 0


def test_information(capsys):
    facts = printed(capsys, "info", "runs/corpus-mdlm", "--json")
    assert Recipe.from_dict(facts["recipe"]).network.width == 32
    model = partita.load("runs/corpus-mdlm")
    assert facts["parameters"] == sum(p.numel() for p in model.method.parameters())
    assert facts["checkpoints"]
    assert main(["info", "runs/corpus-mdlm"]) == 0
    assert "network.width" in capsys.readouterr().out


def test_lists(capsys):
    lists = printed(capsys, "methods", "--json")
    assert set(lists["methods"]) == set(METHODS)
    lines = {name: entries for name, entries in lists.items() if name != "methods"}
    assert all(line for entries in lines.values() for line in entries.values())
    assert main(["methods"]) == 0
    assert "first-hitting" in capsys.readouterr().out


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_it_is(capsys, name):
    facts = printed(capsys, "methods", name, "--json")["methods"][name]
    for key in ("summary", "paper", "equation", "loss", "data"):
        assert facts[key]
    family = METHODS[name].family
    assert set(facts["samplers"]) == {s for s in SAMPLERS if SAMPLERS[s].family == family}
    assert (Path(partita.__file__).parent.parent / facts["file"]).exists()
    assert main(["methods", name]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert facts["paper"] in out
    assert all(f"method.{key}" in out for key in facts["choices"])
    known, own = parameters_of(name), own_options(name)
    keys = {f"options.{key}" if key in own else key for key in known}
    assert set(facts["choices"]) <= keys
    assert {f"options.{key}" for key in own} <= set(facts["choices"])


def trained(method):
    """A small model of another method, once for all tests that ask for it."""
    if not Path(f"runs/corpus-{method}").exists():
        words = ["train", "corpus.txt", "--method.name", method, "--run.previews", "0"]
        assert main(words + [word for pair in FLAGS.items() for word in pair]) == 0
    return f"runs/corpus-{method}"


def test_showing_a_chain_shows_its_states(capsys):
    assert main(["sample", trained("genmd4"), "--show", "--steps", "12", "--seed", "2"]) == 0
    (text,) = partita.load(trained("genmd4")).sample(1, seed=2, steps=12)
    frames = capsys.readouterr().out.split("\n\n")
    assert len(frames) >= 4
    assert "▒" in frames[0]
    assert text.split("\n")[0][:10] in "".join(frames[-2:])


def test_the_report_of_learned_schedules(capsys, tmp_path):
    model, picture = trained("genmd4"), tmp_path / "new/schedules.png"
    facts = printed(capsys, "report", model, "--count", "3", "--out", str(picture), "--json")
    exponents = partita.load(model).method.exponents.detach().sort().values.tolist()
    assert [row["exponent"] for row in facts["smallest"]] == pytest.approx(exponents[:3])
    assert [row["exponent"] for row in facts["largest"]] == pytest.approx(exponents[:-4:-1])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["report", model, "--out", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "smallest w" in out
    assert f"Wrote {picture}" in out


def test_the_report_of_sums_of_scores(capsys, tmp_path):
    model, picture = trained("sedd"), tmp_path / "sums.png"
    words = ["report", model, "corpus.txt", "--limit", "480", "--out", str(picture)]
    rows = printed(capsys, *words, "--json")["consistency"]
    loaded = partita.load(model)
    text = Path("corpus.txt").read_text()
    tokens, real = windows(loaded.tokenizer.encode(text)[:480], loaded.length)
    expected = score_consistency(loaded.method, tokens, is_token=real)
    assert [row["mean"] for row in rows] == pytest.approx([row.mean for row in expected])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(words) == 0
    assert "alpha / (1 - alpha)" in capsys.readouterr().out


def test_an_exported_model_is_the_model(capsys, tmp_path):
    out = str(tmp_path / "exported")
    assert main(["export", "runs/corpus-mdlm", out]) == 0
    assert "Exported" in capsys.readouterr().out
    old, new = partita.load("runs/corpus-mdlm"), partita.load(out)
    assert new.sample(2, seed=1) == old.sample(2, seed=1)
    assert not (tmp_path / "exported/training.safetensors").exists()


def test_an_exported_model_names_no_folders(place, capsys, tmp_path):
    """Also of a run that was told of its places from the root on."""
    words = ["train", str(place / "corpus.txt"), "--from", str(place / "runs/corpus-mdlm")]
    words += ["--data.cache", str(place / "prepared"), "--run.previews", "0"]
    run, out = str(tmp_path / "run"), tmp_path / "exported"
    assert main([*words, "--training.steps", "1", "--out", run]) == 0
    assert main(["export", run, str(out)]) == 0
    assert str(place) in json.dumps(printed(capsys, "info", run, "--json")["recipe"])
    config = (out / "config.json").read_text()
    assert str(place) not in config
    assert str(tmp_path) not in config
    model = partita.load(out)
    assert model.recipe.data.path == "corpus.txt"
    assert model.recipe.data.cache == "prepared"
    assert model.recipe.training.start_from == "corpus-mdlm"
    assert model.provenance["started_from"]["path"] == "corpus-mdlm"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("notes.txt", "notes.txt"),
        ("texts/notes.txt", "notes.txt"),
        ("/home/me/notes.txt", "notes.txt"),
        ("hf:owner/name?split=test", "hf:owner/name?split=test"),
        ("hf:/home/me/rows?split=test", "hf:rows?split=test"),
    ],
)
def test_a_portable_recipe_names_its_text_alone(path, expected):
    recipe = Recipe(
        data=DataOptions(path=path, cache="/elsewhere/tokens"),
        tokenizer=TokenizerOptions("/home/me/tokenizer.json"),
        training=TrainingOptions(start_from="owner/model"),
    )
    assert recipe.portable() == Recipe(
        data=DataOptions(path=expected),
        tokenizer=TokenizerOptions("tokenizer.json"),
        training=TrainingOptions(start_from="owner/model"),
    )


def test_a_loss_that_is_no_bound_is_called_so(tmp_path, capsys):
    words = ["train", "corpus.txt", "--training.steps", "1", "--run.previews", "0"]
    for law, no_bound in (("subset", False), ("unweighted", True)):
        assert main([*words, "--method.corruption", law, "--out", str(tmp_path / law)]) == 0
        assert ("is no bound" in capsys.readouterr().out.replace("\n", " ")) is no_bound


def test_texts_in_the_precision_that_is_asked_for():
    model = partita.load("runs/corpus-mdlm", device="cpu")
    seen = []
    hook = model.method.network.head.register_forward_hook(lambda *x: seen.append(x[2].dtype))
    for precision, dtype in ((None, torch.float32), ("bfloat16", torch.bfloat16)):
        seen.clear()
        assert len(model.sample(2, steps=3, precision=precision)) == 2
        assert set(seen) == {dtype}
    hook.remove()
    with pytest.raises(InputError, match="precision: unknown name 'half'"):
        model.sample(2, precision="half")


def test_weights_in_half_of_the_space(tmp_path, capsys):
    for name, more in (("whole", []), ("half", ["--precision", "bfloat16"])):
        assert main(["export", "runs/corpus-mdlm", str(tmp_path / name), *more]) == 0
    assert main(["export", str(tmp_path / "half"), str(tmp_path / "again")]) == 0
    names = ("whole", "half", "again")
    files = [tmp_path / name / "model.safetensors" for name in names]
    assert files[1].read_bytes() == files.pop().read_bytes()  # half stays half
    whole, half = (file.stat().st_size for file in files)
    assert 0.45 * whole < half < 0.55 * whole
    old, new = (partita.load(tmp_path / name).method.state_dict() for name in ("whole", "half"))
    assert all(torch.equal(new[name], old[name].bfloat16().float()) for name in old)
    said = [line.split(", ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert said == ["weights in float32", "weights in bfloat16", "weights in bfloat16"]


def test_a_printed_recipe_can_be_read_again(here, capsys):
    assert main(["train", "corpus.txt", "--training.seed", "4", "--print_config"]) == 0
    text = capsys.readouterr().out
    sections = yaml.safe_load(text)
    assert sections["training"]["seed"] == 4
    (here / "printed.yaml").write_text(text)
    assert main(["train", "--config", "printed.yaml", "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == sections
