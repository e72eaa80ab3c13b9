"""Commands that make something, to be killed while they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harm import looks
from harm.places import FAST, TRAIN
from harm.subjects import Action, command


@dataclass(frozen=True)
class Job:
    """A command, and what it makes."""

    name: str
    place: str
    action: Action
    made: str = "new"
    """The name of what it makes; it is there as a whole or not at all."""
    runs: tuple[str, ...] = ()
    """Run folders in it, which grow instead."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """The one command."""
        return (self.action,)


def _prepare(name: str, words: str, place: str = "texts") -> Job:
    action = command(f"prepare {words} --data.cache new", lambda _said: looks.tokens(Path("new")))
    return Job(f"kills/prepare-{name}", place, action, "new/*")


def _runs(name: str, place: str, words: str, *folders: str) -> Job:
    action = command(words, lambda _said: looks.digest(looks.run(Path(name)) for name in folders))
    return Job(f"kills/{name}", place, action, "", folders)


def _made(name: str, place: str, words: str, look: Callable[[], str]) -> Job:
    return Job(f"kills/{name}", place, command(words, lambda _said: look()))


def _tokenizer() -> str:
    """A tokenizer of images, and the picture beside it."""
    picture = Path("new-reconstructions.png").read_bytes()
    return looks.digest([looks.model(Path("new")), picture])


def _model() -> str:
    return looks.model(Path("new"))


_TRAIN = f"{TRAIN} --run.validate_every 10"
# Every step is reported: otherwise a run that is stopped reports at one more.
_EIGHT = "--training.steps 8 --run.checkpoint_every 3 --run.log_every 1"
_SDTT = f"distill --teacher saved --rounds 2 --out new {_EIGHT} {FAST}"
_VQ = "--vq.steps 6 --vq.network.codes 16 --vq.network.width 8 --vq.network.factor 2"
_IMPORT = "import model.ckpt new --tokenizer tokenizer.json --length 16"
JOBS = (
    _runs("train-mdlm", "corpus", _TRAIN, "run"),
    _runs("train-pgm", "corpus", f"{_TRAIN} --method.name pgm", "run"),
    _runs("train-from", "saved", f"{_TRAIN} --from saved --out new", "new"),
    _runs("distill", "saved", _SDTT, "new/round-1", "new/round-2"),
    _made("vq", "images", f"vq mnist new {_VQ}", _tokenizer),
    _made("import", "published", _IMPORT, _model),
    _made("export", "saved", "export saved new", _model),
    _prepare("text", "notes.txt"),
    _prepare("bpe", "notes.txt --tokenizer.name bpe --tokenizer.vocab_size 400"),
    _prepare("jsonl", "rows.jsonl --data.label kind"),
    _prepare("zst", "rows.jsonl.zst"),
    _prepare("parquet", "rows.parquet"),
    _prepare("tar", "set.tar --tokenizer.name pixels", "images"),
    _prepare("mnist", "mnist-packed --tokenizer.name pixels", "images"),
)
