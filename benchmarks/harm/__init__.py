"""Harm that a computer or a stranger may do, and what the library makes of it.

Every case is a seed, an area and a number, from which all that happens in it follows; it ends in
one of these ways (`outcomes.py`):

refused     exit code 2 or an `InputError`, in one message that names the file at fault or what it
            belongs to; nothing is left behind
equal       the result is that of the undamaged input, in every bit
other       the result differs, but nothing could have told: the damaged input is sound input
ran         hostile words ended in a result, which is nothing to compare with
silent      the result differs although something could have told: a fault
unclear     refused by a message that does not name what it is about: a fault
leftover    refused, or ended after a kill, with files left behind: a fault
lost        after a kill, what was complete before is gone or damaged, or what is not complete has
            its name: a fault
uncaught    a traceback, another exit code, a process that died: a fault
hung        longer than the limit: a fault
memory      more memory than the limit, or none left: a fault
code        something in the input was run: a fault

What could have told that input is damaged? A checksum of our own: those of the manifests of models,
checkpoints and prepared tokens. A check that a container has by itself, if a second reader
(`referees.py`) sees by it that the file is damaged: the sums of gzip, xz, zstd and zip, of the
heads in a tar, of the parts of a PNG, of Parquet's pages. A text, a number in JSON, a pixel of a
BMP have none: other text is other input.
"""
