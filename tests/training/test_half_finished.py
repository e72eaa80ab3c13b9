"""Runs that were left half done before keys of recipes had their names of today go on.

`data` holds two of them at step 20 of 40, with what the code that made them got for the rest. On
one kind of CPU the losses agree bit by bit; between kinds a sum may be added up in another order.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from partita.commands import main
from partita.config.migration import KEY, VERSION

DATA = Path(__file__).parent / "data"
SAME = "--tokenizer.name characters --network.width 16 --network.heads 2 --network.depth 2"
SAME += " --network.length 16 --training.batch_size 4 --training.steps 40 --training.ema_decay 0.9"
SAME += " --training.max_grad_norm 0.5 --training.learning_rate 0.003"
SAME += " --data.validation_fraction 0.1"
OWN = {
    "mdlm": "--training.optimizer adamw --training.lr_schedule wsd",
    "pgm": "--training.optimizer muon",
}
RUN = "--run.device cpu --run.previews 0 --run.log_every 1 --run.validate_every 10"
RUN += " --run.checkpoint_every 20 --run.validation_rows 8 --run.cuda_graph false"


@pytest.mark.parametrize("method", OWN)
def test_a_run_of_the_version_before_goes_on_as_it_would_have(method, tmp_path, monkeypatch):
    shutil.copytree(DATA / method, tmp_path / "run")
    shutil.copy(DATA / "notes.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    words = f"train notes.txt --out run --method.name {method} {SAME} {OWN[method]} {RUN}"
    assert main(words.split()) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    expected = json.loads((DATA / method / "next.json").read_text())
    for key, known in (("loss", expected["losses"]), ("valid_bits", expected["valid_bits"])):
        found = {str(line["step"]): line[key] for line in lines if key in line}
        assert {step: found[step] for step in known} == pytest.approx(known, rel=0, abs=1e-5)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 41))
    content = json.loads(Path("run/recipe.json").read_text())
    assert content[KEY] == VERSION
    assert content["recipe"]["training"]["ema_decay"] == 0.9
