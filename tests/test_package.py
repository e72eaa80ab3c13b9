"""The package as a stranger gets it: light to import, whole in its wheel, documented truthfully."""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import partita

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )


def test_everything_that_is_exported_exists():
    for name in partita.__all__:
        assert getattr(partita, name) is not None
    assert set(dir(partita)) == set(partita.__all__)
    with pytest.raises(AttributeError, match="mdlm"):
        _ = partita.mdlm


def test_every_module_imports():
    for module in pkgutil.walk_packages(partita.__path__, "partita."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_import_needs_no_gpu_no_network_and_no_compiler():
    """Sockets are closed, processes forbidden, GPUs hidden: the import does not notice."""
    code = """
import os, socket, subprocess, torch
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["PATH"] = ""
def refuse(*a, **k): raise AssertionError("the import reached outside")
socket.socket.connect = refuse
subprocess.Popen.__init__ = refuse
import partita
for name in partita.__all__: getattr(partita, name)
"""
    result = python(code)
    assert result.returncode == 0, result.stderr


def test_wheel_is_complete(tmp_path):
    """The built wheel holds every module, and runs from where it was unpacked."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("partita-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    sources = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/partita").rglob("*.py")}
    assert sources <= names
    assert "partita/py.typed" in names
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import partita, torch; "
        f"assert partita.__file__.startswith({str(tmp_path)!r}), partita.__file__; "
        "from partita.commands import main; sys.exit(main(['demo', '--seconds', '0.5']))"
    )
    result = python(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def fenced(page, language):
    """The bodies of a page's fenced blocks of one language ("" for plain ones)."""
    pattern = r"^```(\w*)\n(.*?)^```$"  # consumed pair by pair, so a closing fence opens nothing
    found = re.findall(pattern, page.read_text(), re.MULTILINE | re.DOTALL)
    return [body for name, body in found if name == language]


def programs():
    for page in PAGES:
        # The blocks of a page are one program: later ones use names of earlier ones.
        if blocks := fenced(page, "python"):
            yield pytest.param("\n".join(blocks), id=page.name)


@pytest.mark.parametrize("program", list(programs()))
def test_python_examples_run(program):
    result = python(program)
    assert result.returncode == 0, result.stderr


def shell_commands():
    lines = [line for page in PAGES for block in fenced(page, "") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("partita ")]
    assert commands
    return commands


@pytest.mark.parametrize("command", shell_commands())
def test_commands_in_the_documentation_run(command, tmp_path):
    """As written, on small files under the names that the documentation uses."""
    (tmp_path / "notes.txt").write_text("\n\n".join(f"note {n} is short" for n in range(50)))
    rows = "\n".join(json.dumps({"body": f"row {n}"}) for n in range(50))
    (tmp_path / "dump.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    words = [sys.executable, "-m", *shlex.split(command)]
    result = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr


def test_readme_commands_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= used <= targets


def test_readme_lists_every_method_sampler_and_schedule():
    from partita.methods import METHODS
    from partita.samplers import SAMPLERS
    from partita.schedules import SCHEDULES

    text = " ".join(page.read_text() for page in PAGES)
    for name in [*METHODS, *SAMPLERS, *SCHEDULES]:
        assert f"`{name}`" in text, f"{name} is not documented"


def test_version_is_in_the_changelog():
    assert f"## {partita.__version__}" in (ROOT / "CHANGELOG.md").read_text()
