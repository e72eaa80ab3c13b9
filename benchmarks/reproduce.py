"""Train and measure models of docs/results.md, part by part.

    python benchmarks/reproduce.py wiki8 --data texts
    python benchmarks/reproduce.py digits

Runs are saved in runs/. Results go to benchmarks/results/, replacing those that are there, and
`make results` makes the page of them. A part that was stopped is resumed. --data contains,
compressed or not (wiki8-speed and digits need none of it):

    wiki8-train.txt, wiki8-valid.txt, wiki8-test.txt     characters of Wikipedia, as text8 has them
    wiki-train.txt, wiki-valid.txt, wiki-test.txt        its articles as they are
    wikitext2_test.txt, ptb_test.txt, lambada_test.txt   texts of others
    mnist/, cifar10.tar                                  images

Words after `--` are flags for every `partita train`, for example to try everything at small size.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import run
import sampling_settings
import strides
import texts
from verbs import asked, keep, partita, printed, split_flags

from partita.devices import choose_device

HERE = Path(__file__).parent
RECIPES, EXAMPLES = HERE.parent / "recipes", HERE.parent / "examples"
COMPARED = ("ar", "mdlm", "pgm")
OTHERS = ("mdlm-complementary", "genmd4", "md4-linear", "md4-cosine", "pgm-2-6", "pgm-1-7")
STEPS, FEW_STEPS = "[16,32,64,128,256,512,1024]", "[4,8,16,32,64,128]"
TEXTS = (
    "--network.length 1024 --network.width 512 --network.depth 8 --network.heads 8 "
    "--network.mlp relu2 --network.registers 4 --vocabulary 27 --turns 2 "
    "--growth_lengths [] --growth_batches []"
)
ROUNDS = ("round-1", "round-2", "round-3")
SENTENCES = ("sentences-flexmdm", "sentences-flexmdm-distribution")
BITS = ("bits_per_dimension", "bits_per_dimension_error")
DRAWING = ("pgm", "maskgit")
VQ = {
    "mnist": "--vq.network.codes 128 --vq.steps 2000",
    "cifar10": "--vq.network.codes 512 --vq.network.width 64 --vq.steps 4000",
}


class Reproduction:
    """The parts of the reproduction: each public method is one."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.data: Path = chosen.data
        self.runs: Path = chosen.runs
        self.out: Path = chosen.out
        self.samples: int = chosen.samples
        self.images: int = chosen.images
        self.at_once: int = chosen.at_once
        self.flags: list[str] = chosen.flags

    def wiki8(self) -> None:
        """MDLM and PGM trained for 220 s each, their texts judged by an AR of one minute."""
        self._trained([f"wiki8-{name}" for name in COMPARED], "wiki8")
        mdlm, pgm = (self.runs / f"wiki8-{name}" for name in ("mdlm", "pgm"))
        self._compared("wiki8-steps", [mdlm, pgm], STEPS, "--batch_size", "32")
        self._compared("wiki8-schedules", [mdlm], "[16,64,256]", "--schedules", "[linear,cosine]")

    def wiki8_speed(self) -> None:
        """Sampling time of these MDLM and PGM for one text, and for 32 at a time on a GPU."""
        device = choose_device("auto")
        few = "[16,32,64,128,256]"
        settings = (
            {"cpu": (1, few)}
            if device.type == "cpu"
            else {"gpu": (1, STEPS), "gpu-32": (32, STEPS)}
        )
        for name, (texts_at_once, steps) in settings.items():
            words = [*TEXTS.split(), "--growth_steps", steps, "--batch_size", str(texts_at_once)]
            partita("bench", "growth", *words, "--out", self.out / f"wiki8-speed-{name}.json")

    def wiki8_others(self) -> None:
        """The other methods trained for 220 s each, and GenMD4's learned schedules."""
        self._trained([f"wiki8-{name}" for name in OTHERS], "wiki8")
        words = self.runs / "wiki8-genmd4", "--out", self.runs / "wiki8-genmd4-schedules.png"
        keep(printed("report", *words), self.out / "wiki8-genmd4-schedules.json")

    def wiki8_students(self) -> None:
        """Students of that MDLM and that PGM, compared with their teachers."""
        for name in ("mdlm", "pgm"):
            teacher, out = self.runs / f"wiki8-{name}", self.runs / f"wiki8-{name}-sdtt"
            words = "--config", RECIPES / "sdtt.yaml", "--teacher", teacher, "--out", out
            partita("distill", *words, *self.flags)
            rounds = [out / number for number in ROUNDS]
            self._compared(f"wiki8-{name}-students", [teacher, *rounds], FEW_STEPS)

    def wiki8_long(self) -> None:
        """MDLM trained for twenty minutes."""
        self._trained(["wiki8-long"], "wiki8")

    def wikipedia(self) -> None:
        """The packaged model, its judge and its student, with all their measurements."""
        self._trained(["wikipedia-ar", "wikipedia-pgm"], "wiki")
        pgm, student, judge = (self.runs / f"wikipedia-{name}" for name in ("pgm", "sdtt", "ar"))
        words = "--config", RECIPES / "sdtt.yaml", "--teacher", pgm, "--out", student
        partita("distill", *words, *self.flags)
        quiz, test = self.runs / "quiz.jsonl", self._find("wiki-test.txt")
        self._example("make_choices.py", test, quiz, "--count", "1000")
        zero_shot = [self._find(f"{name}_test.txt") for name in ("wikitext2", "ptb", "lambada")]
        words_of = ["--sets", test, *zero_shot, "--passages", zero_shot[-1], "--choices", quiz]
        words_of += ["--infill", test, "--count", "1000", "--out", self.out]
        texts.main([*map(str, [judge, *words_of])])
        more = "--judge", judge, "--samples", self.samples, "--grams", self._find("wiki-train.txt")
        texts.main([*map(str, [pgm, student, *words_of, *more])])

    def wikipedia_sampling_settings(self) -> None:
        """Quality of the packaged model's texts under that judge, by sampling settings."""
        self._trained(["wikipedia-ar"], "wiki")
        files = "--grams", self._find("wiki-train.txt"), "--test", self._find("wiki-test.txt")
        words = *files, "--judge", self.runs / "wikipedia-ar", "--samples", self.samples
        sampling_settings.main([*map(str, [*words, "--out", self.out])])

    def wikipedia_strides(self) -> None:
        """The gain of drawing tokens together that lie far apart, judged by n-grams."""
        words = self._find("wiki-train.txt"), "--out", self.out / "strides-cpu.json"
        strides.main([*map(str, words)])

    def sentences(self) -> None:
        """Lengths of sentences by FlexMDM, and by an MDLM on padded rows."""
        sets = {part: self._find(f"wiki-{part}.txt") for part in ("train", "valid", "test")}
        for kind, fill in (("sentences", ()), ("filled", ("--fill", "|"))):
            for part, text in sets.items():
                out = self.runs / f"{kind}-{part}.txt"
                self._example("make_sentences.py", text, out, "--longest", "64", *fill)
        self._trained([*SENTENCES], "sentences", self.runs)
        self._trained(["sentences-mdlm"], "filled", self.runs)
        flexible = ["--flexible", *(str(self.runs / name) for name in SENTENCES)]
        padded = "--padded", self.runs / "sentences-mdlm"
        files = self.runs / "sentences-test.txt", self.runs / "sentences.png"
        figures = "--count", 8 * self.samples, "--out", self.out / "sentences.json"
        self._example("lengths.py", *files, *flexible, *padded, *figures)

    def mnist(self) -> None:
        """Digits as VQ codes, by PGM and by MaskGIT."""
        self._images("mnist", self._find("mnist"))

    def cifar10(self) -> None:
        """CIFAR-10 as VQ codes, by PGM and by MaskGIT."""
        self._images("cifar10", self._find("cifar10.tar"))

    def digits(self) -> None:
        """Sampling schedules, on digits small enough to train on a CPU."""
        self._drawn("digits", "digits")
        settings = itertools.product(DRAWING, (4, 8, 16, 32), ("linear", "cosine", "arccos"))
        rows = [
            {"schedule": schedule}
            | self._look("digits", "digits", method, steps, 0, "--options.schedule", schedule)
            for method, steps, schedule in settings
        ]
        keep(gathered(rows), self.out / "digits-schedules.json")

    def _images(self, name: str, images: Path) -> None:
        """A VQ tokenizer, two models of its codes, and their images judged by a classifier."""
        tokenizer = self.runs / f"vq-{name}"
        if not tokenizer.exists():
            partita("vq", images, tokenizer, *VQ[name].split())
        self._drawn(name, images, "--tokenizer.name", tokenizer)
        settings = [*itertools.product(DRAWING, (8, 16, 32, 64), (0, 1))]
        with ThreadPoolExecutor(self.at_once) as workers:
            rows = [*workers.map(lambda how: self._look(name, images, *how), settings)]
        keep(gathered(rows), self.out / f"{name}-codes.json")

    def _drawn(self, name: str, images: str | Path, *more: str | Path) -> None:
        """Images drawn by models of a set, judged by a classifier."""
        for method in DRAWING:
            words = "--config", RECIPES / f"{name}-{method}.yaml", *more
            out = "--out", self.runs / f"{name}-{method}"
            partita("train", images, *words, *out, *self.flags)
        self._look(name, images, DRAWING[0], 1, 0)  # which trains the classifier, once

    def _look(
        self, name: str, images: str | Path, method: str, steps: int, guidance: int, *more: str
    ) -> dict[str, Any]:
        """Measure images drawn in this many steps, by a classifier."""
        words = "--steps", str(steps), "--guidance", str(guidance), "--samples", str(self.images)
        eye = "--classifier", self.runs / f"eye-{name}"
        said = asked("eval", self.runs / f"{name}-{method}", images, *words, *eye, *more)
        told = {"method": method, "steps": steps, "guidance": guidance}
        bits = {key: said["likelihood"][key] for key in BITS}
        samples: dict[str, Any] = said["samples"]
        return told | samples | bits | {"environment": said["environment"]}

    def _trained(self, names: Sequence[str], kind: str, place: Path | None = None) -> None:
        """Train recipes and measure the results."""
        words: list[str | Path] = [RECIPES / f"{name}.yaml" for name in names]
        for part in ("train", "valid", "test"):
            words += [f"--{part}", self._find(f"{kind}-{part}.txt", place)]
        words += ["--runs", self.runs, "--out", self.out, "--at_once", str(self.at_once)]
        run.main([*map(str, words), "--", *self.flags])

    def _compared(self, name: str, models: Sequence[Path], steps: str, *more: str) -> None:
        """Compare texts of models in few steps and in many, under the judge of wiki8."""
        words = "--judge", self.runs / "wiki8-ar", "--steps", steps, "--samples", str(self.samples)
        keep(asked("compare", *models, *words, *more), self.out / f"{name}.json")

    def _find(self, name: str, place: Path | None = None) -> Path:
        """Find a file by its name, compressed or not."""
        place = place or self.data
        found = sorted(place.glob(f"{name}*"))
        if not found:
            raise SystemExit(f"--data: there is no {name} in {place}, compressed or not")
        return found[0]

    def _example(self, name: str, *words: str | Path | int) -> None:
        """Run one of the programs in examples/."""
        command = [sys.executable, str(EXAMPLES / name), *map(str, words)]
        subprocess.run(command, check=True)


def gathered(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Results of one machine, with its description given once."""
    environments = [row.pop("environment") for row in rows]
    return {"environment": environments[-1], "rows": rows}


PARTS = [name.replace("_", "-") for name in vars(Reproduction) if not name.startswith("_")]


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="part", help=", ".join(PARTS))
    parser.add_argument("--data", type=Path, default=Path(), help="folder of texts and images")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--samples", type=int, default=256, help="texts for each measurement")
    parser.add_argument("--images", type=int, default=2000, help="images for each measurement")
    parser.add_argument("--at_once", type=int, default=1, help="how many are measured in parallel")
    parser.add_argument("--out", type=Path, default=run.RESULTS, help="where results go")
    own, flags = split_flags(words)
    chosen = parser.parse_args(own)
    chosen.flags = flags
    return chosen


def main(words: Sequence[str] | None = None) -> None:
    """Run the chosen parts, in the given order."""
    chosen = parsed(sys.argv[1:] if words is None else words)
    made = Reproduction(chosen)
    for part in chosen.parts:
        getattr(made, part.replace("-", "_"))()


if __name__ == "__main__":
    main()
