"""The results of `partita ngram` as a table."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from partita.commands.accuracy import add_bits
from partita.modalities.base import heading
from partita.modalities.text_evaluation import add_likelihood, add_samples


def table(results: dict[str, Any]) -> Table:
    """The results as a table."""
    shown, model = Table("", "", show_header=False), results["model"]
    counted = f"{model['tokens']:,} tokens, {sum(model['grams']):,} grams"
    shown.add_row(heading(f"{model['order']}-grams"), f"{model['train']}: {counted}")
    if "likelihood" in results:
        add_likelihood(shown, results["likelihood"])
    for flag, title in (("infill", "infill"), ("last_word", "last-word")):
        if flag in results:
            shown.add_row(heading(title), results[flag]["file"])
            _add_answers(shown, results[flag])
    if "samples" in results:
        add_samples(shown, results["samples"])
    return shown


def _add_answers(shown: Table, found: dict[str, Any]) -> None:
    """Add the accuracy on hidden words, and their bits."""
    left = found["left_side"]
    shown.add_row("questions", str(left["count"]))
    for name in ("both_sides", "left_side"):
        if name in found:
            share = f"{found[name]['accuracy']:.1%} ± {found[name]['accuracy_error']:.1%}"
            shown.add_row(f"accuracy by {name.replace('_', ' ')}", share)
    single = found.get("both_sides", {}).get("one_token")
    if single is not None:
        spread = f"{single['bits_per_answer']:.3f} ± {single['bits_per_answer_error']:.3f}"
        shown.add_row("bits by both sides", f"{spread} ({single['count']} of one token)")
    add_bits(shown, left, where=" by left side")
