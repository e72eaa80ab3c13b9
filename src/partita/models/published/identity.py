"""Which method a published checkpoint is of.

MDLM, SEDD and Duo give their tensors the same names and shapes, BlockGen does too, and BD3-LM adds
two buffers. What they compute differs, so a file must not be taken for MDLM's by its names alone.
Lightning's hyper-parameters say what it is, or else the `config.json` beside it; where neither
does, the user has to (`--method`). A configuration inside the file goes first: one beside it may
belong to another file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.errors import InputError, require
from partita.files.format import read_json
from partita.models.published.pickled_values import entry
from partita.models.published.reference import listed
from partita.models.published.stored import Checkpoint

CONFIG = "config.json"
IMPORTED = {"mdlm": "MDLM", "pgm": "PGM", "ar": "the autoregressive baseline"}
FOREIGN = {
    "sedd": "SEDD, whose network gives log scores at a noise level instead of logits",
    "duo": "Duo, which replaces tokens by random ones and has no mask",
    "bd3lm": "BD3-LM, whose network reads the clean text beside the noisy one, block by block",
    "blockgen": "BlockGen, whose network reads the clean text beside the noisy one",
    "d3pm": "D3PM, whose network also gives the mask a probability",
    "uniform": "uniform diffusion, which replaces tokens by random ones and has no mask",
}
_READ = "partita import reads MDLM, PGM, their students by SDTT, and the autoregressive baseline"
_LARGEST = 1 << 20  # bytes of a configuration
_BUFFERS = ("sampling_eps_min", "sampling_eps_max")  # of BD3-LM
_FITS = {"mdlm": ("mdlm",), "pgm": ("pgm", "mdlm"), "ar": ("ar",)}  # PGM's code calls both MDLM
_NETWORKS = {
    "mdlm": "a DIT with time layers, as MDLM, SEDD and Duo have it",
    "pgm": "the network of PGM",
    "ar": "a DIT without time layers, as the autoregressive baseline has it",
}


def _itself(*names: str) -> dict[str, str]:
    return dict(zip(names, names, strict=True))


# What names a method in a configuration, and what it means. A name that is not here is that of an
# unknown method: it decides nothing, however well known what follows it is.
_NAMES: dict[tuple[str, ...], Mapping[str, str]] = {
    ("model_type",): _itself("mdlm", "sedd", "duo", "bd3lm"),  # of a Hugging Face config.json
    # Duo's repository, and those that began as copies of it.
    ("algo", "name"): {
        **_itself("mdlm", "ar", "sedd", "d3pm", "duo", "bd3lm"),
        **dict.fromkeys(("duo_base", "distillation"), "duo"),
        **dict.fromkeys(("blockgen-absorb", "blockgen-uniform"), "blockgen"),
        "complement-mdlm": "mdlm",
        "partition-mdlm": "pgm",
    },
    ("parameterization", "name"): {"multi-round-sdtt": "mdlm", "partition-sdtt": "pgm"},  # SDTT's
    ("parameterization",): {"subs": "mdlm", **_itself("ar", "sedd", "d3pm")},  # MDLM's
    ("type",): {"block-dit": "blockgen"},  # BlockGen's, whose baselines are all called dit
}
# What rules MDLM out, whatever the method is called.
_MARKS: dict[tuple[str, ...], Mapping[str, str]] = {
    ("algo", "parameterization"): {"mean": "duo", **_itself("sedd", "d3pm")},
    ("architectures",): _itself("duo", "sedd", "bd3lm"),  # of a Hugging Face one
    ("diffusion",): _itself("uniform"),
    ("diffusion", "name"): _itself("uniform"),
    ("diffusion", "type"): _itself("uniform"),
}


@dataclass(frozen=True)
class Statement:
    """What one source says of a file."""

    source: str
    found: str
    """The clause for an error where it does not say enough."""
    method: str | None = None
    words: str = ""
    """What names the method there."""
    time: bool | None = None
    """Whether the network was trained with the time, if that is said."""

    @property
    def by(self) -> str:
        """The source with its words."""
        return f"by {self.source} ({self.words})"


def statements(path: Path, checkpoint: Checkpoint) -> list[Statement]:
    """What sources say of a file; the config beside it only if the file names no method."""
    said = [*_of_buffers(checkpoint), _of_hyper_parameters(checkpoint)]
    if any(statement.method is not None for statement in said):
        return said
    return [*said, beside(path.with_name(CONFIG))]


def _of_buffers(checkpoint: Checkpoint) -> list[Statement]:
    # Even if they are to be left out: they show what the rest is.
    found = [key for key in checkpoint.weights if key.rpartition(".")[2] in _BUFFERS]
    return [Statement("its buffers", "", "bd3lm", listed(found))] if found else []


def _of_hyper_parameters(checkpoint: Checkpoint) -> Statement:
    source = "its hyper-parameters"
    if checkpoint.config is None:
        return Statement(source, "it holds no hyper-parameters")
    return _stated(source, f"{source} name", checkpoint.config)


def beside(path: Path) -> Statement:
    """What a `config.json` says of the weights beside it."""
    source = f"the {CONFIG} beside it"
    if not path.is_file():
        return Statement(source, f"there is no {CONFIG} beside it")
    try:
        require(path.stat().st_size <= _LARGEST, "file", "is too large")
        return _stated(source, f"{source} names", read_json(path))
    except (InputError, OSError):
        return Statement(source, f"{source} cannot be read")


def _stated(source: str, names: str, config: object) -> Statement:
    given = list(_given(config))
    foreign = [one for one in given if one[1] in FOREIGN]
    words, method = (foreign or given or [("", None)])[0]
    found = f"{names} no method" + (f" that is known here ({words})" if given else "")
    return Statement(source, found, method, words, _time(config))


def _given(config: object) -> Iterator[tuple[str, str | None]]:
    """What names a method in a configuration, in words, each with the method."""
    if entry(config, "graph") is not None and entry(config, "tokens") is not None:  # SEDD's
        yield _in_words(("graph", "type"), entry(config, "graph", "type")), "sedd"
    distilled = ("parameterization", "num_distill_steps")  # SDTT's, of teachers and students
    if entry(config, *distilled) is not None:
        yield _in_words(distilled, entry(config, *distilled)), "mdlm"
    for path, methods in _NAMES.items():
        value = entry(config, *path)
        if isinstance(value, str):
            yield _in_words(path, value), methods.get(value.casefold())
    for path, methods in _MARKS.items():
        value = entry(config, *path)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and one.casefold() in methods:
                yield _in_words(path, one), methods[one.casefold()]


def _in_words(path: Sequence[str], value: object) -> str:
    name = ".".join(path)
    return f"{name} {value[:60]!r}" if isinstance(value, str) else name


def _time(config: object) -> bool | None:
    paths = (("time_conditioning",), ("algo", "time_conditioning"))
    values = (entry(config, *path) for path in paths)
    return next((value for value in values if isinstance(value, bool)), None)


def require_method(name: str | None, argument: str = "method") -> None:
    """Refuse the name of a method that cannot be imported."""
    known = f"known: {', '.join(IMPORTED)}"
    if name in FOREIGN:
        raise InputError(argument, f"models of {FOREIGN[name]}, cannot be imported", known)
    require(name is None or name in IMPORTED, argument, f"unknown name {name!r}", known)


def refuse_foreign(said: Sequence[Statement], given: str | None) -> None:
    """Refuse a file that is said to be of a method that cannot be imported."""
    for statement in said:
        if statement.method in FOREIGN:
            by, which = statement.by, f"a model of {FOREIGN[statement.method]}"
            require(given is not None, "file", f"{by} it is {which}", _READ)
            raise InputError("method", f"is {given!r}, but {by} the file is {which}", _READ)


def check_method(network: str, said: Sequence[Statement], given: str | None) -> None:
    """Whether what is said of a file fits the network that its tensors are, and decides.

    `network` is mdlm, pgm or ar, by the names of the tensors.
    """
    problem = f"is {given!r}, but its tensors are those of {_NETWORKS[network]}"
    require(given in (None, network), "method", problem, "leave it out")
    decided = given is not None or network != "mdlm"
    for statement in said:
        if statement.method is None:
            continue
        decided = True
        stated = f"{statement.by} it is a model of {IMPORTED[statement.method]}"
        problem = f"{stated}, but its tensors are those of {_NETWORKS[network]}"
        require(statement.method in _FITS[network], "file", problem)
    found = ", and ".join(statement.found for statement in said)
    problem = f"its tensors fit MDLM, SEDD and Duo alike, and nothing says which it is ({found})"
    remedy = "give --method mdlm if it is a model of MDLM or one of its students by SDTT"
    require(decided, "file", problem, remedy)


def check_time(network: str, said: Sequence[Statement], conditioning: str) -> None:
    """Whether an MDLM is imported with the time if, and only if, it was trained with it."""
    for statement in said if network == "mdlm" else ():
        trained, unfit, remedy = "without", "sigma", "leave it out"
        if statement.time:
            trained, unfit, remedy = "with", "none", "give --conditioning sigma"
        problem = f"is {conditioning!r}, but by {statement.source} (time_conditioning) the model "
        fits = statement.time is None or conditioning != unfit
        require(fits, "conditioning", f"{problem}was trained {trained} the time", remedy)
