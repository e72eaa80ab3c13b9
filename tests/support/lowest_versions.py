"""The lowest versions that `pyproject.toml` allows, as constraints for pip.

`make test-lowest` installs exactly these. A resolver's own lowest-version mode
silently raises some of them where a dependency of a dependency is too new; constraints are met or
fail.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
TOOLS = "dev"  # tools for tests may have any version
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\d.]+)")


def lowest_versions(project: Mapping[str, Any]) -> dict[str, str]:
    """The lower bound of every dependency of the package and its extras."""
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
