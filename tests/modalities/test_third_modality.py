"""A modality that the library does not have: one file, and every verb knows it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SERIES = Path(__file__).parent.parent / "support" / "series.py"
TRAIN = (
    "train waves.npy --tokenizer.name levels --tokenizer.levels 8 --network.length 16 "
    "--training.steps 6 --training.batch_size 8 --run.validate_every 3 --run.previews 2 "
    "--run.device cpu --out run --network.width 32 --network.depth 1 --network.heads 2"
)
# In one process: to start one takes longer than the verbs do.
VERBS = f"""
import json, shlex, sys
import series
codes = [series.main(shlex.split(words)) for words in json.loads({"sys.argv[1]"})]
print("codes", *codes)
"""


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    """A folder with the file of the modality, some data, and a model that was trained on them."""
    folder = tmp_path_factory.mktemp("series")
    shutil.copy(SERIES, folder / "series.py")
    phase = np.linspace(0, 60, 80)[:, None]
    values = np.sin(phase + np.linspace(0, 6, 16))
    np.save(folder / "waves.npy", values)
    values[0, 4:] = np.nan
    np.save(folder / "gaps.npy", values[:2])
    done = run(folder, "series.py", *TRAIN.split())
    assert done.returncode == 0, done.stderr
    assert "Try: python series.py sample run --out drawn.npy" in done.stdout
    return folder


def run(folder, *words):
    """A program in a folder."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def verbs(folder, *words, codes):
    """Some verbs one after the other; what they print."""
    done = run(folder, "-c", VERBS, json.dumps(words))
    assert done.stdout.splitlines()[-1] == " ".join(["codes", *map(str, codes)]), done.stderr
    return done


def test_a_run_prepares_validates_and_leaves_previews(waves):
    preview, _ = sorted((waves / "run" / "samples").iterdir())
    rows = [line for line in preview.read_text().splitlines() if line and "---" not in line]
    assert [len(row.split()) for row in rows] == [16, 16]
    assert "valid_bits" in (waves / "run" / "metrics.jsonl").read_text()


def test_models_sample_fill_in_and_are_measured(waves):
    done = verbs(
        waves,
        "sample run --count 3 --steps 4 --seed 1 --out drawn.npy --json",
        "infill run gaps.npy --out filled.npy",
        "eval run waves.npy --samples 4 --moments 3 --replicates 2 --out results.json",
        "prepare waves.npy --tokenizer.name levels",
        "info run",
        codes=[0] * 5,
    )
    assert json.loads(done.stdout.splitlines()[0]) == {"out": "drawn.npy", "sequences": 3}
    assert "filled.npy: 2 sequences" in done.stdout
    assert "(76 sequences) and" in done.stdout
    drawn, filled = np.load(waves / "drawn.npy"), np.load(waves / "filled.npy")
    given = np.load(waves / "gaps.npy")
    assert drawn.shape == (3, 16)
    assert np.abs(drawn).max() <= 1
    assert np.array_equal(filled[1], given[1].astype(np.float32))
    assert np.isfinite(filled).all()
    found = json.loads((waves / "results.json").read_text())
    assert set(found["samples"]) == {"1", "2", "3"}
    assert 0 < found["likelihood"]["bits"] < 8
    assert found["sampling"]["sampler"] == "ancestral"


def test_what_is_of_other_data_is_refused_in_words(waves):
    done = verbs(
        waves,
        "sample run --prompt a",
        "sample run --gif film.gif",
        "sample run --out drawn.txt",
        "sample run --show",
        "score run 'a text'",
        "eval run waves.npy --judge run",
        f"{TRAIN} --network.length 8 --out other",
        "train waves.npy",
        codes=[2] * 8,
    )
    for part in (
        "--prompt: is for text, and this is a model of series; leave it out",
        "--gif: is for images, and this is a model of series; leave it out",
        "--out: drawn.txt would hold a NPY, and its name says otherwise; end its name in .npy",
        "--show: shows texts, and this is a model of series",
        "model: run is a model of series; sample, infill and eval know series",
        "--judge: is for text, and this is a model of series",
        "network.length: is 8, but a sequence has 16 numbers; give --network.length 16",
        "tokenizer.name: bytes makes no tokens of series; give levels",
    ):
        assert part in done.stderr, done.stderr


def test_without_its_file_a_model_is_refused(waves):
    done = run(waves, "-m", "partita", "sample", "run")
    assert done.returncode == 2
    assert "unknown kind 'levels'; known: bytes, characters, pixels, tokenizers, vq" in done.stderr
