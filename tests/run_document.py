"""Runs the Python snippets of Markdown files, each file in one namespace: a script for ranks.

Snippets are the ```python blocks. `<!--- skip: next -->` leaves one out, `<!--- skip: next
if(condition) -->` in some jobs. A ```text block directly below shows what rank 0 prints: the lines
must be the same, with other numbers perhaps.

Files follow one another in one process, which imports TensorFlow once; each begins a job anew, in
an empty folder. A snippet must not lead to a warning of Python, Keras or TensorFlow: a reader would
wonder.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator

from sybil import Example
from sybil.document import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.abstract import AbstractCodeBlockParser
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer

import ringar
from tests.plugin.fixtures import quicken

OUTPUT = re.compile(r"\s*^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A number, with a unit of time.
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d*)?(?:e[-+]?\d+)?(?:[mun]?s\b)?")


class VisibleBlockParser(AbstractCodeBlockParser):
    """Finds the Python blocks that a reader sees."""

    def __init__(self) -> None:
        fences = FencedCodeBlockLexer(
            "python", mapping={"language": "arguments", "source": "source"}
        )
        super().__init__([fences], "python", PythonEvaluator())


class Heard(logging.Handler):
    """Keeps the messages of Keras and TensorFlow."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.name}: {record.getMessage()}")


@contextlib.contextmanager
def without_warnings(place: str) -> Iterator[None]:
    """Raises at the end of the context if there was a warning in it."""
    handler = Heard()
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow", "py.warnings")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as records:
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    messages = [f"{w.filename}:{w.lineno}: {w.message}" for w in records] + handler.messages
    # TensorFlow counts the models of all pages, which a reader has in as many programs.
    messages = [text for text in messages if "triggered tf.function retracing" not in text]
    if messages:
        raise AssertionError(f"{place}: expected no warning, received {messages}")


@contextlib.contextmanager
def empty_folder() -> Iterator[int]:
    """Enters a new folder of all ranks, which is removed at the end, and yields this rank."""
    ringar.init()
    rank, home = ringar.rank(), os.getcwd()
    with contextlib.ExitStack() as stack:
        folder = None if rank else stack.enter_context(tempfile.TemporaryDirectory())
        os.chdir(ringar.broadcast_object(folder))
        stack.callback(os.chdir, home)
        ringar.shutdown()
        yield rank
        ringar.shutdown()


def lines(text: str) -> list[str]:
    """Returns the lines of `text` without their numbers."""
    return [" ".join(NUMBER.sub("#", line).split()) for line in text.rstrip().splitlines()]


def evaluate(example: Example, rank: int) -> None:
    """Runs a snippet, and compares the output of rank 0 with that which the page shows."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            example.evaluate()
    finally:
        print(printed.getvalue(), end="", flush=True)
    shown = OUTPUT.match(example.document.text, example.end)
    if shown and rank == 0 and lines(printed.getvalue()) != lines(shown[1]):
        raise AssertionError(
            f"{example.path}:{example.line}: expected the output in the page, with any numbers,\n"
            f"{shown[1]}\nreceived\n{printed.getvalue()}\nPut this into the page."
        )


def main(path: str) -> None:
    """Runs the snippets of the document at `path`; the first that raises ends the program."""
    # By the absolute path autograph reads the source of a function.
    document = Document.parse(os.path.abspath(path), VisibleBlockParser(), SkipParser())
    with empty_folder() as rank:
        for example in document.examples():
            print(f"{path}:{example.line}", flush=True)
            skipped = contextlib.suppress(unittest.SkipTest)  # `skip: next if(condition)`
            with skipped, without_warnings(f"{path}:{example.line}"):
                evaluate(example, rank)


if __name__ == "__main__":
    quicken()
    for path in sys.argv[1:]:
        main(path)
