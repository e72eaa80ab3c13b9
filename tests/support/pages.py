"""The pages of documentation, and the commands that they show."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    """The fenced blocks of a page, as (language, body)."""
    return FENCE.findall(page.read_text())


def commands(page):
    lines = [line for name, body in blocks(page) if name == "" for line in body.splitlines()]
    return [line for line in lines if re.match(r"(partita|torchrun|python) ", line)]
