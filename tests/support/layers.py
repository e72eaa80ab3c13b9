"""The layers of the library, from the ground up, and the imports of each module."""

from __future__ import annotations

import ast
from pathlib import Path

import partita

SOURCE = Path(partita.__file__).parent

# Packages in one line do not import each other.
LAYERS = [
    "errors moved version",
    "registry signals memory devices",
    "files provenance",
    "plotting kernels parallel",
    "randomness",
    "categorical",
    "contracts",
    "schedules",
    "processes",
    "networks",
    "methods",
    "samplers",
    "likelihood distillation",
    "execution",
    "data optim",
    "config",
    "models",
    "training",
    "evaluation",
    "studies",
    "modalities",
    "commands",
    "partita __main__",
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names.split()}


def room(module: str) -> str:
    """The package that a module belongs to: the name below `partita`, or the facade."""
    return module.split(".")[1] if "." in module else module


def modules() -> dict[str, Path]:
    """All modules of the library, by name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the library that a file imports, also lazily or for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in known else str(node.module) for name in names}
    return {name for name in found if name.split(".")[0] == "partita"}
