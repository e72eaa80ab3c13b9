"""The command line: one file per verb. This file imports nothing heavy, so that help is quick."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from partita import __version__
from partita.errors import InputError

# verb: what it does. The verb's module has `run(words)`, which returns an exit code.
VERBS = {
    "demo": "watch a model write and fill in text (--seconds 60 trains one first)",
    "train": "train on your own text or images; the same command again goes on where it stopped",
    "distill": "a student that needs fewer sampling steps than its teacher",
    "vq": "train a tokenizer for images: pixels to codes",
    "sample": "write texts or draw images with a trained model (--show to watch)",
    "infill": "fill in the blanks of a text, or a part of an image",
    "score": "how many bits a model needs for given texts",
    "eval": "likelihood of a file, and quality of what a model writes",
    "accuracy": "how often a model knows a hidden word, or the right ending",
    "ngram": "count n-grams of a text, as a baseline for all of these numbers",
    "compare": "quality of models against the number of sampling steps, with a picture",
    "report": "what genmd4 and sedd show of themselves once trained",
    "info": "what a run, checkpoint or model is made of",
    "methods": "list methods, samplers, schedules and laws",
    "prepare": "turn text files into tokens on disk (train does it by itself)",
    "bench": "how fast sampling and training are on this machine",
    "export": "a folder for sharing, or for the hub (--push)",
    "import": "a model folder out of a published checkpoint of MDLM, PGM or SDTT",
}
_MODULES = {"import": "import_model"}  # where the verb cannot be the module's name
USAGE_ERROR = 2
_FULL = "make room, then give the same command again"
_CLOSED = "choose another place, or change its permissions"
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "raise the limit of this system or shell (ulimit -f), then try again",
    errno.EACCES: _CLOSED,
    errno.EPERM: _CLOSED,
    errno.EROFS: _CLOSED,
    errno.EEXIST: "choose another name",
    errno.ENOTDIR: "choose another place",
}
_NO_COMPILER = ("No working C++ compiler", "Failed to find C compiler")
_TOO_LARGE = ("allocate memory", "out of memory", "size calculation overflowed")


def program() -> str:
    """How this command line is called: `partita`, or the file that adds a method to it.

    Where no `partita` is on the path, it is the file that was called, such as `.venv/bin/partita`.
    """
    script = Path(sys.argv[0])
    if script.suffix == ".py" and script.name != "__main__.py":
        return f"python {script}"
    if shutil.which("partita") is None:
        if script.name == "partita":
            return str(_near(script))
        if script == Path(__file__).parents[1] / "__main__.py":
            return f"{_near(Path(sys.executable))} -m partita"
    return "partita"


def _near(path: Path) -> Path:
    """A path as it is seen from the working folder, if it lies in there."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def overview() -> str:
    """What `partita --help` prints."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {what}" for verb, what in VERBS.items()]
    return "\n".join(
        [
            f"usage: {program()} VERB [options]",
            "",
            "Masked and partition generative modelling.",
            "",
            "verbs:",
            *lines,
            "",
            f"{program()} VERB --help explains a verb; {program()} --version prints the version.",
        ]
    )


def module_of(verb: str) -> ModuleType:
    """The module of a verb: it has `options(words)` and `run(words)`."""
    return importlib.import_module(f"partita.commands.{_MODULES.get(verb, verb)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Bad input is one message on standard error and exit code 2."""
    _let_threads_sleep()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"partita {__version__}")
        return 0
    try:
        if words[0] not in VERBS:
            near = difflib.get_close_matches(words[0], VERBS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            known = f"{hint}known: {', '.join(VERBS)}"
            raise InputError("verb", f"unknown name {words[0]!r}", known)
        code: int = module_of(words[0]).run(words[1:]) or 0
    except InputError as error:
        # Of many processes, which find the same fault, one speaks.
        return _refused(error) if os.environ.get("RANK", "0") == "0" else USAGE_ERROR
    except BrokenPipeError:  # a reader such as `head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a missing permission, a file where a folder should be
        where = f"{error.filename}: " if error.filename else ""
        remedy = f"; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else ""
        return _refused(f"{where}{error.strerror or error}{remedy}")
    except (MemoryError, RuntimeError) as error:
        if any(text in str(error) for text in _NO_COMPILER):
            return _refused(
                "compiler: there is no working C++ compiler, which compiled code needs; install "
                "one, such as g++, or do without --speed compiled and --run.compile"
            )
        if isinstance(error, RuntimeError) and not any(text in str(error) for text in _TOO_LARGE):
            raise
        return _refused("memory: there is not enough for what was asked; ask for less at a time")
    except SystemExit as exit_request:  # `--help` of a verb
        return int(exit_request.code or 0)
    except KeyboardInterrupt:
        print("partita: stopped", file=sys.stderr)
        return 130
    return code


def _let_threads_sleep() -> None:
    """Threads that wait shall sleep, not spin, unless the user's environment says otherwise.

    On a machine that does something else besides, spinning costs an order of magnitude (on an idle
    one it gains a third). OpenMP reads the variable once, when torch loads it. This is a choice for
    a whole process, which a command owns and a library does not.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _refused(message: object) -> int:
    """Say what is wrong."""
    print(f"partita: {message}", file=sys.stderr)
    return USAGE_ERROR
