"""The lowest versions that `pyproject.toml` asks for, as constraints that pip understands.

`make test-lowest` installs exactly these. A resolver's own mode of lowest versions raises some
without a word where a dependency of a dependency is chosen too new; constraints cannot be met
halfway.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
TOOLS = "dev"  # what tests the package, which may be of any age
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\d.]+)")


def lowest_versions(project: Mapping[str, Any]) -> dict[str, str]:
    """The lower bound of everything that the package and its extras ask for."""
    extras = project.get("optional-dependencies", {})
    wanted = [*project["dependencies"]]
    wanted += [each for name, members in extras.items() if name != TOOLS for each in members]
    found: dict[str, str] = {}
    for requirement in wanted:
        stated = REQUIREMENT.fullmatch(requirement)
        if stated is None:
            raise ValueError(f"{requirement!r} has no lower bound, or more than that")
        name, version = stated.groups()
        if found.setdefault(name, version) != version:
            raise ValueError(f"{name} has two lower bounds: {found[name]} and {version}")
    return found


if __name__ == "__main__":
    for name, version in lowest_versions(tomllib.loads(PROJECT.read_text())["project"]).items():
        print(f"{name}=={version}")
