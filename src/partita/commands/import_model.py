"""`partita import`: convert a published checkpoint of MDLM, PGM or SDTT to a model folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rich.table import Table

from partita.commands.parsing import flags_of, reader
from partita.commands.terminal import Terminal
from partita.data.prepare import read_tokenizer, tokenizer_file
from partita.data.tokenizers import Tokenizer
from partita.errors import InputError, naming, require, require_int, require_ints, require_known
from partita.files.atomic import check_new
from partita.files.downloads import NotFetchedError, fetch
from partita.files.names import ASK_THE_HUB, PREFIX, Hosted, missing
from partita.models.card import network_in_words
from partita.models.published.identity import CONFIG, beside, refuse_foreign, require_method
from partita.models.published.importing import blaming, import_model, look_into
from partita.models.published.planning import CONDITIONINGS, ImportOptions
from partita.models.published.selection import WEIGHTS
from partita.models.text_model import TextModel
from partita.networks.kind_options import QUERIES

GPT2 = "openai-community/gpt2"
_HOSTED = re.compile(r"hf:([\w.-]+/[\w.-]+)/([^@]+)(?:@(.+))?")
_SELF_CONTAINED = ".ckpt"  # Lightning's files contain the configuration
_LONGEST = 1 << 24  # the largest length that a model folder may state
_CHOICES = {"weights": WEIGHTS, "conditioning": CONDITIONINGS, "queries": QUERIES}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita import`."""

    file: str
    out: str
    tokenizer: str = "gpt2"
    """gpt2, the path of a tokenizer.json, or a hub id."""
    heads: int | None = None
    """Number of attention heads, if it is not in the file; by default width / 64."""
    length: int = 1024
    """Maximum length of a sequence, which is not in the file."""
    queries: str = "positions"
    """PGM: what queries start from (not in the file): positions, learned, mean or logsumexp."""
    weights: str = "auto"
    """ema (the moving average), raw, or auto: ema if the file has one."""
    conditioning: str = "none"
    """none, or sigma: keep the time layers of an MDLM that was trained with time conditioning."""
    method: str | None = None
    """mdlm, pgm or ar, if neither the file nor its config.json names the method: SEDD, Duo and MDLM
    give their tensors the same names. SDTT's students are models of mdlm or pgm."""
    skip: str = ""
    """Leave out tensors whose names begin so, such as teacher. (separate several by commas)."""

    def __post_init__(self) -> None:
        require(bool(self.file), "file", "is empty", "name a file")
        require(bool(self.out), "out", "is empty", "name a folder")
        require_ints(self, "--", heads=1)
        require_int(self.length, "--length", 1, _LONGEST)
        require_method(self.method, "--method")
        for name, known in _CHOICES.items():
            require_known(getattr(self, name), f"--{name}", known)
        require(all(self.skipped()), "--skip", "names an empty prefix", "leave it out")

    def skipped(self) -> tuple[str, ...]:
        """The prefixes to leave out."""
        return tuple(self.skip.split(",")) if self.skip else ()


options = reader(
    "import",
    "Convert a published checkpoint to a model folder for all other verbs. The checkpoint is\n"
    "a .ckpt file of Lightning or a .safetensors file; no code in it is run, so files of\n"
    "unknown origin are safe to read. Its hyper-parameters, a config.json in its folder or\n"
    "--method say what it is: MDLM, PGM, one of their SDTT students, or the autoregressive\n"
    "baseline. With files of other methods (SEDD, Duo, BD3-LM), the command stops with an\n"
    "error that gives the reason. If the network always gets the same time, its time layers\n"
    "are merged into the others: the model is smaller and computes the same.\n\n"
    "On the Hugging Face hub: jdeschena/pgm (mdlm.ckpt, pgm_8_8.ckpt, pgm_6_6_dim1024.ckpt\n"
    "and their *_sdtt_* students), jdeschena/sdtt (model.safetensors of many revisions) and\n"
    "kuleshov-group/mdlm-owt (model.safetensors).",
    [
        "partita import pgm_8_8.ckpt pgm",
        "partita import hf:jdeschena/pgm/mdlm.ckpt mdlm --weights ema",
        "partita import hf:jdeschena/sdtt/model.safetensors@teacher_1M_sm teacher",
        "partita import own.ckpt own --tokenizer tokenizer.json --length 128 --weights raw",
        "partita import bare.safetensors own --method mdlm",
        "partita import student.ckpt student --skip teacher.",
    ],
    Options,
    file="a checkpoint: a path, or hf:OWNER/REPOSITORY/FILE[@REVISION] on the hub",
    out="the folder to write; it must not exist yet",
)


def run(words: Sequence[str]) -> None:
    """Run the quick checks first; then read, convert, write."""
    chosen = options(words)
    out = Path(chosen.out)
    check_new(out, "out")
    hosted = _hosted(chosen.file)
    if hosted is None and not Path(chosen.file).exists():
        raise missing(chosen.file, "file", f"check the name, or give {PREFIX}...")
    console, path = Terminal(), Path(chosen.file)
    name = GPT2 if chosen.tokenizer == "gpt2" else chosen.tokenizer
    given = {key: getattr(chosen, key) for key in ("heads", "length", "method", *_CHOICES)}
    how = ImportOptions(**given, skip=chosen.skipped())
    with naming(flags_of(Options, "file", "out")):
        if hosted is None:  # check the file before fetching a tokenizer
            look_into(path, how)
        tokenizer = find_tokenizer(name)
        if hosted is not None:
            path = _download(console, *hosted, chosen.method)
        model = import_model(path, tokenizer, how, console.say, name)
    model.save(out)
    report(console, model, out)


def find_tokenizer(name: str) -> Tokenizer:
    """The tokenizer with this name."""
    try:
        file = tokenizer_file(name, "--tokenizer")
        if file is None:
            raise InputError("tokenizer", f"{name!r} is no tokenizer of a published model")
        return read_tokenizer(file)
    except InputError as error:
        usual = f"give gpt2, the path of a tokenizer.json, or {ASK_THE_HUB} on the hub"
        online = isinstance(error.__cause__, NotFetchedError)  # which may be gpt2
        raise InputError("--tokenizer", error.problem, error.remedy if online else usual) from error


def report(console: Terminal, model: TextModel, out: Path) -> None:
    """Print a summary of the model, and what to do with it."""
    facts = model.provenance
    tokenizer = f"{model.recipe.tokenizer.name}, {model.tokenizer.vocab_size:,} tokens"
    table = Table(show_header=False, box=None)
    table.add_row("method", f"{model.recipe.method.name} ({facts['detected']})")
    table.add_row("parameters", f"{model.parameter_count:,}")
    table.add_row("network", network_in_words(model.recipe))
    table.add_row("weights", facts["weights"])
    table.add_row("tokenizer", tokenizer)
    console.say(f"Imported to {out}")
    console.print(table)
    console.say(f"Try: partita sample {out}")


# Files on the hub --------------------------------------------------------------------------------


def _hosted(name: str) -> tuple[Hosted, str] | None:
    """The repository and the file of a hub name; None for a path."""
    if not name.startswith(PREFIX):
        return None
    found = _HOSTED.fullmatch(name)
    if found is None:
        raise InputError("file", f"cannot read {name!r}", "write hf:OWNER/REPOSITORY/FILE")
    return Hosted(found[1], found[3]), found[2]


def _download(console: Terminal, asked: Hosted, file: str, method: str | None) -> Path:
    """Fetch a file, and the config.json beside it unless the file contains its configuration."""
    console.say(f"Fetching {file} of {asked.repository}, unless it is in the cache")
    try:
        if file.endswith(_SELF_CONTAINED):
            return fetch(asked, file)
        config = str(PurePosixPath(file).with_name(CONFIG))
        return fetch(asked, file, config, trouble=_download_config(asked, file, config, method))
    except NotFetchedError as error:
        problem = f"the hub does not give {file} of {asked.repository}: {error.why}"
        remedy = error.remedy(f"give {asked.folder}/{file} instead", "check the name")
        raise InputError("file", problem, remedy) from error


def _download_config(asked: Hosted, file: str, config: str, method: str | None) -> str | None:
    """Fetch the config.json of a file if there is one; return what kept the hub from answering.

    A model that the config.json shows to be refused is not downloaded.
    """
    try:
        found = beside(fetch(asked, config))
    except NotFetchedError as error:
        return error.trouble
    with blaming(f"{file} of {asked.repository}"):
        refuse_foreign([found], method)
    return None
