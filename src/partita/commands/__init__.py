"""The command line: one file per verb. This file imports nothing heavy, so that help is fast."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from partita.commands.interruptions import interruptible
from partita.commands.streams import OUTPUT, READER_LEFT, outlets, printable
from partita.errors import InputError, Stopped, left_by, suggestion
from partita.signals import stopping
from partita.version import __version__

# verb: what it does. The verb's module has `run(words)`, which returns an exit code.
VERBS = {
    "demo": "watch a model write text and fill in blanks (--seconds 60 trains one first)",
    "train": "train on your own text or images; run the same command again to resume",
    "distill": "train a student that needs fewer sampling steps than its teacher",
    "vq": "train a tokenizer that turns images into codes",
    "sample": "write texts or draw images with a trained model (--show to watch)",
    "infill": "fill in the blanks of a text, or a part of an image",
    "score": "measure how many bits a model needs for given texts",
    "eval": "measure the likelihood of a file, and the quality of samples",
    "accuracy": "measure how often a model predicts a hidden word, or chooses the right ending",
    "ngram": "count the n-grams of a text, as a baseline for these measurements",
    "compare": "plot the quality of models against the number of sampling steps",
    "report": "show genmd4's learned schedules, or the consistency of sedd's scores",
    "info": "show the recipe, provenance and metrics of a run, checkpoint or model",
    "methods": "list methods, samplers, networks, schedules and corruptions",
    "prepare": "turn text files into tokens on disk (train does it by itself)",
    "bench": "measure how fast sampling and training are on this machine",
    "export": "write a model folder for sharing, or upload it to the hub (--push)",
    "import": "convert a published checkpoint of MDLM, PGM or SDTT to a model folder",
}
# Verbs whose only result is what they print.
PRINTING = {"demo", "sample", "infill", "score", "info", "methods"}
_MODULES = {"import": "import_model"}  # verbs whose name cannot be a module's
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
    errno.ENAMETOOLONG: "choose a shorter name",
}
NOTHING_SAVED = "nothing was saved: the same command begins anew"
_UNSEEN = "the work is done, but not all of it was shown"
_NO_COMPILER = ("No working C++ compiler", "Failed to find C compiler")
_TOO_LARGE = ("allocate memory", "out of memory", "size calculation overflowed")


def program() -> str:
    """The name of this program: `partita`, or the file that adds a method to it.

    If no `partita` is on the path, it is the file that was run, such as `.venv/bin/partita`.
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
    """A path relative to the working folder, if it lies inside it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def overview() -> str:
    """The text that `partita --help` prints."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {what}" for verb, what in VERBS.items()]
    return "\n".join(
        [
            f"usage: {program()} VERB [options]",
            "",
            "Masked and partition generative modeling of texts and images.",
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
    with outlets(needed=_only_prints(words)) as out, interruptible():
        code = _answered(words)
        if out.fault is None:
            return code
        if out.left:
            return READER_LEFT if _only_prints(words) and code == 0 else code
        return code or _refused(f"{OUTPUT}: {out.fault.strerror}; {_UNSEEN}")


def _only_prints(words: Sequence[str]) -> bool:
    """Whether printing is all that this command does, so that it can end with its reader."""
    return not words or words[0] in PRINTING or not {"--help", "-h", "--version"}.isdisjoint(words)


def _answered(words: Sequence[str]) -> int:
    """Run one verb and return its exit code; errors become a message."""
    try:
        code = _run(words)
        sys.stdout.flush()
    except InputError as error:
        return _refused(error) if _speaks() else USAGE_ERROR
    except OSError as error:  # a full disk, a missing permission, a file where a folder should be
        return _refused(_described(error))
    except (MemoryError, RuntimeError) as error:
        if any(text in str(error) for text in _NO_COMPILER):
            return _refused(
                "compiler: there is no working C++ compiler, which compiled code needs; install "
                "one, such as g++, or do without --speed compile and --run.compile"
            )
        if isinstance(error, RuntimeError) and not any(text in str(error) for text in _TOO_LARGE):
            raise
        return _refused("memory: there is not enough for what was asked; ask for less at a time")
    except SystemExit as exit_request:  # `--help` of a verb, or a closed pipe
        return int(exit_request.code or 0)
    except KeyboardInterrupt as error:
        return _stopped(error, only_prints=_only_prints(words))
    return code


def _let_threads_sleep() -> None:
    """Let waiting threads sleep instead of spin, unless the environment says otherwise.

    On a busy machine, spinning costs an order of magnitude (on an idle one it gains a third).
    OpenMP reads the variable once, when torch loads it. The setting affects the whole process, so
    commands make it and the library does not.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"partita {__version__}")
        return 0
    if words[0] not in VERBS:
        remedy = f"{suggestion(words[0], VERBS)} known: {', '.join(VERBS)}".lstrip()
        raise InputError("verb", f"unknown name {words[0]!r}", remedy)
    with stopping():
        return module_of(words[0]).run(words[1:]) or 0


def _described(error: OSError) -> str:
    """The message for a system error, with what to do about it."""
    where = f"{error.filename}: " if error.filename else ""
    remedy = f"; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else ""
    return f"{where}{error.strerror or error}{remedy}"


def _refused(message: object) -> int:
    """Print an error message; return the exit code of a usage error."""
    _say(message)
    return USAGE_ERROR


def _stopped(error: KeyboardInterrupt, *, only_prints: bool) -> int:
    """Print what was saved; return the exit code by which shells know the signal."""
    number = error.number if isinstance(error, Stopped) else signal.SIGINT
    left = left_by(error) or ([] if only_prints else [NOTHING_SAVED])
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    if _speaks():
        _say("; ".join([f"stopped{by}", *left]))
    return 128 + number


def _say(message: object) -> None:
    """Print one line to standard error."""
    text = f"partita: {message}"
    print(printable(text) if sys.stderr.isatty() else text, file=sys.stderr)


def _speaks() -> bool:
    """Whether this process prints errors: of several with the same error, only the first does."""
    return os.environ.get("RANK", "0") == "0"
