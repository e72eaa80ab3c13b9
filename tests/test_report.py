"""docs/results.md is what its template and the measurements make of it; how those are made."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml

import partita
from partita.commands import main
from partita.config.recipe import Recipe

ROOT = Path(__file__).parents[1]


@pytest.fixture
def program(monkeypatch):
    """A program of benchmarks/, as a module."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield importlib.import_module
    for name in (
        "report",
        "reproduce",
        "run",
        "sampling_settings",
        "ship",
        "strides",
        "texts",
        "verbs",
    ):
        sys.modules.pop(name, None)


@pytest.fixture
def here(program, monkeypatch):
    """Commands of the library without processes of their own."""
    monkeypatch.setattr(program("verbs"), "partita", lambda *words, **_: main([*map(str, words)]))


@pytest.fixture
def report(program):
    return program("report")


def test_the_report_is_up_to_date(report):
    assert report.rendered() == report.REPORT.read_text(), "run make results"


def test_so_is_the_card_of_the_shipped_model(report):
    assert report.rendered("card.md") == report.CARD.read_text(), "run make results"


def test_so_are_the_figures_on_the_first_page(report):
    page = (ROOT / "README.md").read_text().splitlines()
    lines = [line for line in report.rendered("readme.md").splitlines() if line]
    assert len(lines) > 1
    for line in lines:
        assert line in page


def test_figures_come_from_the_files(report, tmp_path):
    for file in report.RESULTS.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    report.RESULTS = tmp_path
    steps = tmp_path / "steps-pgm.json"
    measured = json.loads(steps.read_text())
    measured["rows"][0]["judge_bits"] += 1
    steps.write_text(json.dumps(measured))
    assert report.rendered() != report.REPORT.read_text()


def test_a_figure_that_nobody_measured_stops_it(report, tmp_path):
    report.RESULTS = tmp_path
    (tmp_path / "one.json").write_text(json.dumps({"rows": [{"model": "a", "steps": 4}]}))
    assert report.row("one", steps=4) == {"model": "a", "steps": 4}
    with pytest.raises(LookupError, match="0 rows"):
        report.row("one", steps=8)
    with pytest.raises(FileNotFoundError):
        report.rendered()


def test_pictures_are_drawn(report, tmp_path):
    report.draw_steps({"steps-mdlm": "MDLM"}, tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes()[:4] == b"\x89PNG"


SMALL = "--network.width 16 --network.depth 2 --network.heads 2 --network.length 16"
SHORT = "--training.steps 3 --training.seconds null --training.batch_size 2 --run.compile false"


@pytest.fixture
def wiki8(tmp_path):
    """Texts of its names."""
    texts = {part: tmp_path / f"wiki8-{part}.txt" for part in ("train", "valid", "test")}
    for part, text in texts.items():
        text.write_text(f"a text to {part} with " * 40)
    return texts


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["wiki8-mdlm", "wiki8-pgm-1-7"])
def test_a_recipe_is_run_and_measured(program, name, wiki8, tmp_path, capfd):
    flags = "--network.options.decoder_depth 1" if "pgm" in name else ""
    words = [ROOT / "recipes" / f"{name}.yaml", "--limit", 200, "--replicates", 2]
    words += [word for part, text in wiki8.items() for word in (f"--{part}", text)]
    words += ["--runs", tmp_path / "runs", "--out", tmp_path / "out", "--"]
    words += [*SMALL.split(), *SHORT.split(), *flags.split(), "--data.cache", tmp_path / "cache"]
    words += ["--run.device", "cpu"]
    program("run").main([*map(str, words)])
    found = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    assert found["training"]["steps"] == 3
    assert found["training"]["tokens"] == 3 * 2 * 16
    assert found["recipe"]["network"]["width"] == 16
    assert 3 < found["valid"]["bits_per_character"] < 6
    assert found["test"]["file"] == "wiki8-test.txt"
    assert [level["hidden_to"] for level in found["profile"]][-1] == 1
    assert str(tmp_path) not in json.dumps(found)
    assert f"{name}: " in capfd.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_part_of_the_page_is_made_again(program, wiki8, tmp_path):
    wiki8["test"].rename(tmp_path / "wiki8-test.txt.part")  # any ending will do
    flags = [*SMALL.split(), *SHORT.split(), "--data.cache", str(tmp_path / "cache")]
    words = f"wiki8-long --data {tmp_path} --runs {tmp_path}/runs --out {tmp_path}/out --"
    program("reproduce").main([*words.split(), *flags, "--run.device", "cpu"])
    found = json.loads((tmp_path / "out" / "wiki8-long.json").read_text())
    assert found["training"]["steps"] == 3
    with pytest.raises(SystemExit, match=r"--data: there is no cifar10.tar in"):
        program("reproduce").main(["cifar10", "--data", str(tmp_path)])


@pytest.mark.usefixtures("here")
def test_sampling_settings_are_judged(program, wiki8, tmp_path):
    judge = tmp_path / "judge"
    small = f"--method.name ar {SMALL} --training.steps 2 --training.batch_size 2".split()
    main(["train", str(wiki8["train"]), *small, "--out", str(judge), "--run.previews", "0"])
    asking = program("sampling_settings")
    asking.SETTINGS = {
        "--length 8 --sampler ancestral": "[2]",
        "--length 8 --sampler ordered --options.order strided": "[2,8]",
    }
    asking.DRAWN = ("--temperature 1", "--temperature 0.5 --top_p 0.9")
    words = "--judge", judge, "--grams", wiki8["train"], "--test", wiki8["test"]
    asking.main([*map(str, words), "--samples", "2", "--limit", "40", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "wikipedia-sampling-settings.json").read_text())
    assert [
        (row["writer"], row["sampling"]["temperature"], row["steps"]) for row in found["rows"]
    ] == [
        ("default", 1, 2),
        ("default", 1, 2),
        ("default", 1, 8),
        ("default", 0.5, 2),
        ("default", 0.5, 2),
        ("default", 0.5, 8),
        ("5-grams", 1, None),
        ("5-grams", 0.5, None),
    ]
    assert found["rows"][2]["sampling"] == {
        "sampler": "ordered",
        "temperature": 1,
        "order": "strided",
    }
    assert all(row["judge_bits"] > 0 and row["entropy_nats"] > 0 for row in found["rows"])
    assert found["rows"][-1]["sampling"] == {"temperature": 0.5, "top_p": 0.9}
    assert found["test"]["exact"]
    assert found["models"]["default"]["sha256"]
    cost = json.loads((tmp_path / "wikipedia-pgm-order.json").read_text())
    assert cost["in_order"]["order"] == "left-to-right"
    assert str(tmp_path) not in json.dumps([found, cost])


def test_strides_are_judged_by_grams(program, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The river rises in the north and flows through the city. " * 40)
    words = f"{text} --steps 2 8 --samples 3 --length 8 --out {tmp_path}/strides.json"
    made = program("strides")
    made.main(words.split())
    found = json.loads((tmp_path / "strides.json").read_text())
    told = [(row["sampling"], row["steps"]) for row in found["rows"]]
    assert told == [("ancestral", 2), ("strided", 2), ("ancestral", 8), ("strided", 8)]
    assert all(0 < row["bits"] < 30 and row["bits_error"] > 0 for row in found["rows"])
    assert all(0 < row["entropy_nats"] <= math.log(8) for row in found["rows"])
    assert str(tmp_path) not in json.dumps(found)
    for wrong in ("--samples 1", "--steps", "--steps 0"):
        with pytest.raises(SystemExit):
            made.main([*words.split(), *wrong.split()])
    with pytest.raises(SystemExit, match=r"nowhere\.txt does not exist"):
        made.main(["nowhere.txt"])


def test_parts_of_the_page_know_their_recipes(program):
    made = program("reproduce")
    names = [f"wiki8-{name}" for name in (*made.COMPARED, *made.OTHERS, "long")]
    names += [f"{images}-{name}" for images in (*made.VQ, "digits") for name in made.DRAWING]
    names += [*made.SENTENCES, "sentences-mdlm", "wikipedia-ar", "wikipedia-pgm", "sdtt"]
    assert all((made.RECIPES / f"{name}.yaml").is_file() for name in names)
    assert {"wiki8", "wiki8-others", "digits", "wikipedia"} <= set(made.PARTS)


def test_figures_that_are_not_there_yet_are_left_out(report, tmp_path):
    """Of a comparison that grows run by run; it is on the page as soon as texts were judged."""
    report.RESULTS = tmp_path
    assert not report.there("wiki8-steps")
    timed = {
        f"steps {n} (length 1024, batch 1)": [
            {"name": "mdlm, ancestral", "seconds": [n]},
            {"name": "pgm, ancestral", "seconds": [n / 2]},
        ]
        for n in (16, 32)
    }
    rows = [
        {"model": f"wiki8-{method}", "steps": n, "judge_bits": 2 + 1 / n, "judge_bits_error": 0.1}
        | {"entropy_nats": 2.8, "entropy_nats_error": 0.1, "tokens_per_second": factor / n}
        for method, factor in (("mdlm", 1.0), ("pgm", 3.0))
        for n in (16, 32, 64)
    ]
    (tmp_path / "wiki8-steps.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "wiki8-speed-cpu.json").write_text(json.dumps({"growth": timed}))
    assert report.seconds_of_texts("wiki8-speed-cpu", "pgm", 32) == 16
    assert report.seconds_of_texts("wiki8-speed-cpu", "pgm", 64) is None
    assert report.seconds_of_texts("wiki8-speed-gpu-32", "pgm", 32) is None
    found = report.equally_good(["wiki8-speed-cpu", "wiki8-speed-gpu-32"])
    assert [row["steps"] for row in found] == [16, 32, 64]
    assert [row["times"]["wiki8-speed-cpu"].times for row in found[:2]] == pytest.approx([2, 2])
    assert found[2]["times"]["wiki8-speed-cpu"] is None
    assert not any(row["times"]["wiki8-speed-gpu-32"] for row in found)


def test_a_run_that_has_no_time_left_is_stopped(program, tmp_path):
    """That a stopped run keeps what it has is tested where runs are."""
    with pytest.raises(SystemExit, match="the same command goes on"):
        program("verbs").partita("train", tmp_path / "text.txt", seconds=0.1)
    with pytest.raises(SystemExit) as stopped:
        program("verbs").partita("train", tmp_path / "text.txt")  # which is not there
    assert stopped.value.code == 2


def test_a_model_is_put_into_the_package(program, exported, tmp_path):
    ship, out = program("ship"), tmp_path / "weights"
    for _ in range(2):  # the second in place of the first
        ship.main([str(exported), "--out", str(out)])
        assert [file.name for file in tmp_path.iterdir()] == ["weights"]
    model = partita.load(out)
    assert model.recipe.sampling == ship.SAMPLING
    assert "/" not in model.recipe.data.path + model.recipe.data.cache
    stored = safetensors.torch.load_file(out / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    for name, tensor in partita.load(exported).method.state_dict().items():
        assert torch.equal(stored[name], tensor.bfloat16())
    ship.MOST = 1000
    with pytest.raises(SystemExit, match="of 1,000 at most"):
        ship.main([str(exported), "--out", str(out)])
    assert [file.name for file in tmp_path.iterdir()] == ["weights"]


@pytest.mark.usefixtures("here")
def test_models_of_texts_are_asked_what_they_know(program, exported, tmp_path):
    text, passages, quiz = (tmp_path / name for name in ("some.txt", "lines.txt", "quiz.jsonl"))
    text.write_text("the cat sat on a mat and then the dog ran to a door " * 8)
    passages.write_text("the cat sat on a mat\nthe dog ran to a door\n" * 2)
    question = {"context": "the cat", "choices": ["sat", "on"], "answer": 0}
    quiz.write_text(f"{json.dumps(question)}\n" * 2)
    judge = tmp_path / "judge"
    train = f"train {text} --method.name ar --tokenizer.name bytes --training.steps 2 --out {judge}"
    small = f"{SMALL} --run.previews 0 --data.cache {tmp_path}/cache --run.device cpu"
    assert main([*train.split(), *small.split()]) == 0
    words = f"{exported} --sets {text} --passages {passages} --choices {quiz} --infill {text}"
    words += f" --count 4 --judge {judge} --steps [2] --samples 2 --replicates 2 --out {tmp_path}"
    words += f" --grams {text}"
    program("texts").main(words.split())
    found = json.loads((tmp_path / "model-texts.json").read_text())
    assert found["sets"]["some"]["bits_per_byte"] > 1
    assert 0 <= found["last-word"]["accuracy"] <= 1
    assert found["choices"]["count"] == 2
    assert found["infill"]["file"] == "some.txt"
    rows = json.loads((tmp_path / "model-steps.json").read_text())["rows"]
    assert [row["steps"] for row in rows] == [2]
    with pytest.raises(SystemExit):  # of two models with one name
        program("texts").main([str(exported), str(tmp_path / "model")])
    grams = json.loads((tmp_path / "model-grams.json").read_text())
    assert grams["infill"]["left_side"]["count"] == found["infill"]["count"]
    assert grams["likelihood"]["bits_per_byte"] < found["sets"]["some"]["bits_per_byte"]
    assert {"judge", "temperature"} <= set(grams["samples"])
    assert grams["model"]["train"] == "some.txt"
    for name in ("texts", "steps", "grams"):
        assert str(tmp_path) not in (tmp_path / f"model-{name}.json").read_text()


@pytest.mark.parametrize(
    "file",
    sorted(f for kind in ("wiki", "sentences") for f in (ROOT / "recipes").glob(f"{kind}*.yaml")),
    ids=lambda f: f.stem,
)
def test_recipes_of_texts_make_networks_of_the_size_that_they_name(file, capsys):
    assert main(["train", "text.txt", "--config", str(file), "--print_config"]) == 0
    recipe = Recipe.from_dict(yaml.safe_load(capsys.readouterr().out))
    known = {"bpe": recipe.tokenizer.vocab_size, "bytes": 256, "text8": 27}
    tokens = known[recipe.tokenizer.name]
    with torch.device("meta"):
        method = recipe.method.build(recipe.network, tokens)
    millions = sum(p.numel() for p in method.parameters()) / 1e6
    named = re.search(r"([\d.]+) million parameters", file.read_text().replace("\n# ", " "))
    assert abs(float(named[1]) / millions - 1) < 0.06
