"""What a program outside gets from `import partita`: names, and types that checkers believe."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import partita
from partita.methods import METHODS
from partita.networks.base import AnyNetwork

ROOT = Path(__file__).parent.parent
# Kept between runs, as reading torch's types takes far longer than all the rest.
CACHE = ROOT / ".mypy_cache" / "outsiders"

TYPES = """
from typing import assert_type

import partita
from torch import Tensor, tensor

text = partita.load()
assert_type(text, partita.TextModel)
assert_type(partita.TextModel.from_pretrained("runs/a"), partita.TextModel)
assert_type(partita.ImageModel.from_pretrained("runs/a"), partita.ImageModel)
assert_type(text.sample(2, prompt="a"), list[str])
assert_type(text.infill("a __"), list[str])
assert_type(text.score("a"), partita.Score)
assert_type(text.score(["a", "b"]), list[partita.Score])

model = partita.load("runs/a")
assert_type(model, partita.TrainedModel)
assert_type(model.sample(2), list[str] | Tensor)
assert_type(model.infill("a __", count=2), list[str])
assert_type(model.score("a").bits, float)
model.save("folder")

stream = tensor([0, 1])
config = partita.TransformerConfig(vocab_size=3, length=2, width=8, depth=1, heads=1)
method = partita.MDLM(partita.Transformer(config))
assert_type(method, partita.MDLM)
assert_type(partita.sample(method, 2), Tensor)
assert_type(partita.nelbo(method, stream), partita.Estimate)
assert_type(partita.exact_log_likelihood(method, stream), float)
assert_type(partita.order_likelihood(method, stream).bits, float)
assert_type(partita.train(partita.Recipe()), int)
assert_type(partita.make_schedule("linear").alpha(stream), Tensor)
assert_type(partita.sample_ddpm(partita.DDPM(partita.UNet()), [1, 8, 8]), Tensor)
partita.sample(partita.guided(method, 2.0))
partita.fit(method, stream, partita.TrainingOptions(steps=1)).copy_to(method)
"""

WRONG = """
import partita

partita.nonsense
partita.load().sample(2) + 1
partita.load("runs/a").score(b"bytes")
partita.fit("no method", 1, 2)
"""


UNCHECKED = """
import partita

model = partita.load()
for call in (model.infill, model.score):
    try:
        call(["a __"] if call == model.infill else b"a")
    except partita.InputError as error:
        print(error)
"""


# Names -------------------------------------------------------------------------------------------


def static_imports():
    """What type checkers are told: names and the modules that they come from."""
    tree = ast.parse(Path(partita.__file__).read_text())
    (guarded,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {name.name: node.module for node in guarded.body for name in node.names}


def test_checkers_and_programs_see_the_same_names():
    assert static_imports() == partita._HOME
    assert sorted(partita.__all__) == sorted([*partita._HOME, "__version__"])


def networks():
    """Every network of the package that can be made."""
    import partita.networks

    for module in pkgutil.iter_modules(partita.networks.__path__, "partita.networks."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and value.__module__ == module.name:
                yield value


def asked_for(method):
    """The class of network that a method's constructor asks for."""
    annotation = inspect.signature(method.__init__).parameters["network"].annotation
    return vars(sys.modules[method.__init__.__module__])[annotation]


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_can_be_built_from_the_top_level(name):
    """The class itself, and every network that its constructor takes."""
    method = METHODS[name]
    if not method.__module__.startswith("partita."):
        pytest.skip("a method that a test has registered")
    assert getattr(partita, method.__name__) is method
    wanted = asked_for(method)
    assert issubclass(wanted, AnyNetwork)
    if wanted is not AnyNetwork:  # which is what all of them have
        assert getattr(partita, wanted.__name__) is wanted
    assert any(issubclass(each, wanted) and issubclass(each, nn.Module) for each in networks())


def test_networks_and_their_sizes_are_at_the_top_level():
    made = [each for each in networks() if issubclass(each, AnyNetwork)]
    made = [each for each in made if not inspect.isabstract(each) and "__init__" in vars(each)]
    names = {each.__name__ for each in made if issubclass(each, nn.Module)}
    assert {"Transformer", "FlexibleTransformer", "VectorTransformer", "PixelUNet"} <= names
    assert {name for name in names if not hasattr(partita, name)} == set()
    for each in made:
        config = inspect.signature(each).parameters["config"].annotation
        assert hasattr(partita, config), f"{each.__name__} asks for {config}"


def test_sections_of_a_recipe_are_at_the_top_level():
    for section in vars(partita.Recipe()).values():
        assert getattr(partita, type(section).__name__) is type(section)


# Types -------------------------------------------------------------------------------------------


def programs(page):
    """The Python programs of a page: blocks go on with the one before unless they import anew."""
    found = []
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        if block.startswith("import partita"):
            found.append(block)
        else:
            found[-1] += block
    return found


def test_type_checkers_understand_what_the_readme_shows(tmp_path):
    """As they do for a program of somebody else's that uses the installed package."""
    shown = programs(ROOT / "README.md")
    files = {f"readme_{number}.py": program for number, program in enumerate(shown)}
    assert len(files) >= 2
    for name, program in {**files, "right.py": TYPES, "wrong.py": WRONG}.items():
        (tmp_path / name).write_text(program)
    words = ["--strict", "--config-file=", f"--cache-dir={CACHE}", "--hide-error-context"]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *words, *sorted(path.name for path in tmp_path.iterdir())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},  # installed, to mypy
    )
    said = [line for line in result.stdout.splitlines() if ": error:" in line]
    assert [line.split(":")[0] for line in said if "wrong.py" not in line] == [], result.stdout
    wrong = {int(line.split(":")[1]) for line in said}
    assert wrong == {4, 5, 6, 7}, result.stdout + result.stderr


def test_programs_that_no_checker_reads_are_told_of_wrong_types():
    said = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True)
    assert said.stdout.splitlines() == [
        "text: must be a text, got list; give one at a time",
        "text: must be a text or a list of texts, got bytes",
    ], said.stderr
