"""The command line: one file per verb. This file imports nothing heavy, so that help is quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from partita import __version__
from partita.errors import InputError

# verb: what it does. The verb's module has `parser()` and `run(options)`.
VERBS = {
    "demo": "train a small model for a minute and watch it fill in text",
    "prepare": "turn text files into tokens on disk",
}
USAGE_ERROR = 2


def overview() -> str:
    """What `partita --help` prints."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {what}" for verb, what in VERBS.items()]
    return "\n".join(
        [
            "usage: partita VERB [options]",
            "",
            "Masked and partition generative modelling.",
            "",
            "verbs:",
            *lines,
            "",
            "partita VERB --help explains a verb; partita --version prints the version.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Bad input is one line on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"partita {__version__}")
        return 0
    verb = words[0]
    try:
        if verb not in VERBS:
            raise InputError("verb", f"unknown name {verb!r}", f"known: {', '.join(VERBS)}")
        module = importlib.import_module(f"partita.commands.{verb}")
        module.run(module.parser().parse_args(words[1:]))
    except InputError as error:
        print(f"partita: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("partita: stopped", file=sys.stderr)
        return 130
    return 0
