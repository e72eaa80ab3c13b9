"""docs/results.md is what its template and the measurements make of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "report.py"


@pytest.fixture
def report():
    spec = importlib.util.spec_from_file_location("report", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_report_is_up_to_date(report):
    assert report.rendered() == report.REPORT.read_text(), "run make results"


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
