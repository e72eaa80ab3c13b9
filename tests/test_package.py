"""The package as a stranger gets it: light to import, whole in its wheel, documented truthfully."""

from __future__ import annotations

import email
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import partita
from partita.commands import main
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.kernels import KERNELS
from partita.models import default
from tests.support.lowest_versions import lowest_versions

ROOT = Path(__file__).parent.parent
MOST_BYTES = 25 * 10**6  # of the model that is shipped
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
    """Kernels where there is Triton, all others anywhere."""
    for module in pkgutil.walk_packages(partita.__path__, "partita."):
        kernels = module.name.startswith("partita.kernels.")
        if not module.name.endswith("__main__") and (KERNELS or not kernels):
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
from partita.kernels import KERNELS
for name in partita.__all__: getattr(partita, name)
"""
    result = python(code)
    assert result.returncode == 0, result.stderr


def test_import_leaves_the_environment_alone():
    """It is the program's that imports, not the library's."""
    code = """
import os
before = dict(os.environ)
import partita
from partita.commands import main
for name in partita.__all__: getattr(partita, name)
assert os.environ == before, {*os.environ.items()} ^ {*before.items()}
"""
    result = python(code, env=without_policy())
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("before", "given", "expected"),
    [
        ("", {}, "PASSIVE"),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ("sys.modules['torch'] = sys", {}, None),  # which would no longer read it
    ],
)
def test_a_commands_threads_sleep_unless_told_otherwise(before, given, expected):
    code = (
        f"import os, sys; {before}\nfrom partita.commands import main; main(['--version']); "
        "print(os.environ.get('OMP_WAIT_POLICY'))"
    )
    result = python(code, env=without_policy() | given)
    assert result.stdout.splitlines()[-1] == str(expected), result.stderr


def without_policy():
    return {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}


def test_commands_start_without_a_compiler():
    """It takes as long to load as torch itself, and nearly nobody compiles."""
    code = "import sys, partita.commands.train, partita.commands.sample, partita.networks; "
    result = python(code + "sys.exit('torch._dynamo' in sys.modules)")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("method", ["mdlm", "pgm"])
def test_models_are_read_without_a_compiler(method, tmp_path):
    sizes = partita.TransformerOptions(length=8, width=8, depth=2, heads=2)
    recipe = Recipe(method=MethodOptions(name=method), network=sizes)
    built = recipe.method.build(sizes, 256)
    partita.TextModel(built, partita.ByteTokenizer(), recipe).save(tmp_path / "model")
    code = f"import sys, partita; partita.load({str(tmp_path / 'model')!r}).sample(1); "
    result = python(code + "sys.exit('torch._dynamo' in sys.modules)")
    assert result.returncode == 0, result.stderr


def check_shipped():
    """What a package ships is small and works; one that ships nothing says so."""
    if not default.WEIGHTS.exists():
        with pytest.raises(partita.InputError) as error:
            partita.load()
        assert str(error.value) == (
            "model: this installation comes without a model; "
            "name one: a run folder, an exported model or a hub id"
        )
        return
    sizes = [path.stat().st_size for path in default.WEIGHTS.rglob("*") if path.is_file()]
    assert sum(sizes) <= MOST_BYTES, f"{sum(sizes):,} bytes"
    assert partita.load().sample(1, length=8)
    assert main(["demo"]) == 0


def test_the_shipped_model_is_small_and_works():
    assert Path(partita.__file__).parent / "weights" == default.WEIGHTS
    check_shipped()


@pytest.mark.usefixtures("shipped")
def test_a_small_model_may_be_shipped():
    check_shipped()


@pytest.mark.usefixtures("bare")
def test_a_package_without_a_model_says_so():
    check_shipped()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("large", "25,000,001 bytes"),
        ("cut", "model.safetensors was changed or cut short"),
        ("incomplete", "this installation comes without a model"),
    ],
)
def test_no_model_is_shipped_that_is_too_large_or_damaged(
    damage, found, exported, tmp_path, monkeypatch
):
    folder = tmp_path / "weights"
    shutil.copytree(exported, folder)
    if damage == "large":  # by one byte
        taken = sum(path.stat().st_size for path in folder.iterdir())
        with (folder / "more").open("wb") as file:
            file.truncate(MOST_BYTES + 1 - taken)
    elif damage == "cut":
        (folder / "model.safetensors").write_bytes(b"")
    else:
        (folder / "manifest.json").unlink()
    monkeypatch.setattr(default, "WEIGHTS", folder)
    with pytest.raises((AssertionError, partita.InputError), match=found):
        check_shipped()


def test_wheel_is_complete(tmp_path, exported):
    """The built wheel holds every module and a model, and runs from where it was unpacked."""
    source = tmp_path / "source"
    source.mkdir()
    for path in (ROOT / "pyproject.toml", ROOT / "README.md", *ROOT.glob("LICENSE*")):
        shutil.copy(path, source)
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=leave)
    weights = source / "src/partita/weights"
    if not weights.exists():
        shutil.copytree(exported, weights)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("partita-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    sources = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/partita").rglob("*.py")}
    assert sources <= names
    assert "partita/py.typed" in names
    shipped = {f"partita/weights/{path.name}" for path in weights.iterdir()}
    assert {"partita/weights/model.safetensors", "partita/weights/README.md"} <= shipped <= names
    check_licences(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import partita, torch; "
        f"assert partita.__file__.startswith({str(tmp_path)!r}), partita.__file__; "
        "assert partita.load().sample(1, length=8); "
        "from partita.commands import main; sys.exit(main(['demo', '--seconds', '0.5']))"
    )
    result = python(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def check_licences(site):
    """The code's and that of the shipped model are named, and both texts come along."""
    (about,) = site.glob("partita-*.dist-info")
    metadata = email.message_from_string((about / "METADATA").read_text())
    terms = metadata["License-Expression"].split(" AND ")
    assert terms == ["Apache-2.0", "CC-BY-SA-3.0"]
    assert metadata.get_all("License-File") == ["LICENSE", "LICENSE-WEIGHTS"]
    texts = [(about / "licenses" / name).read_text() for name in ("LICENSE", "LICENSE-WEIGHTS")]
    assert "Apache License" in texts[0]
    assert "SPDX-License-Identifier: CC-BY-SA-3.0" in texts[1]


def test_the_shipped_models_licence_is_that_of_its_card():
    card = (ROOT / "src/partita/weights/README.md").read_text()
    (named,) = re.findall(r"^license: (\S+)$", card, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert named.upper() in project["license"].split(" AND ")


def test_readme_commands_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"demo", "test", "test-versions", "test-lowest"} <= used <= targets


def test_pythons_that_are_named_are_those_that_tests_run_on():
    """Every classifier's is on the list of `make test-versions`, which begins with the lowest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (listed,) = re.findall(r"^PYTHONS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [re.fullmatch(r".* :: (3\.\d+)", each) for each in project["classifiers"]]
    versions = [each[1] for each in named if each]
    assert versions == listed.split()[: len(versions)]
    assert project["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize("found", [[], ["3.98"], ["3.98", "3.99"]], ids=len)
@pytest.mark.parametrize("code", [0, 1])
def test_versions_are_those_that_run_and_none_is_no_success(found, code, tmp_path):
    """Commands on the path that do not run are not found; what fails is named, and the rest runs.

    Here the Pythons are scripts, and their tests a line that says what would be tested.
    """
    for version in ("3.97", *found):
        script = tmp_path / f"python{version}"
        script.write_text(f"#!/bin/sh\nexit {int(version not in found)}\n")
        script.chmod(0o755)
    (tmp_path / "tests.mk").write_text(
        f"pytest:\n\t@echo $(VENV) with $(PYTHON), $(TESTS); exit {code}\n"
    )
    # As from a shell: these tests may themselves be run by make, which hands on what it is told.
    outside = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    words = ["PYTHONS=3.97 3.98 3.99", "MAKE=make -f tests.mk", "TESTS=a.py b.py"]
    result = subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), "test-versions", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=outside | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    lines = result.stdout.splitlines()
    assert (result.returncode == 0) == (bool(found) and code == 0)
    for version in found:
        assert f".venv-{version} with python{version}, a.py b.py" in lines
    missing = [version for version in ("3.97", "3.98", "3.99") if version not in found]
    shown = [" ".join(each) or "none" for each in (found, found if code else [], missing)]
    assert lines[-1] == "Tested: {}. Failed: {}. Not found: {}.".format(*shown)


def test_lowest_versions_are_the_bounds_that_are_stated():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = lowest_versions(project)
    stated = [*project["dependencies"], *project["optional-dependencies"]["plots"]]
    for requirement in stated:
        name = re.split(r"[\[>]", requirement)[0]
        assert requirement.endswith(f">={found[name]}")
    assert "pytest" not in found  # a tool, of any age


@pytest.mark.parametrize(
    "requirements", [["torch"], ["torch==2.13"], ["torch>=2,<3"], ["torch>=2", "torch>=3"]]
)
def test_a_dependency_without_one_lower_bound_is_no_dependency(requirements):
    with pytest.raises(ValueError, match="lower bound"):
        lowest_versions({"dependencies": requirements})


def test_readme_lists_every_method_sampler_and_schedule():
    from partita.methods import METHODS
    from partita.samplers import SAMPLERS
    from partita.schedules import SCHEDULES

    text = " ".join(page.read_text() for page in PAGES)
    for name in [*METHODS, *SAMPLERS, *SCHEDULES]:
        assert f"`{name}`" in text, f"{name} is not documented"


def test_version_is_in_the_changelog():
    assert f"## {partita.__version__}" in (ROOT / "CHANGELOG.md").read_text()
