"""Runs the Python snippets of Markdown files, each file in one namespace: a script for ranks.

Snippets are the ```python blocks. What a snippet needs and a reader does not is set up in an
HTML comment, `<!--- invisible-code-block: python ... -->`; `<!--- skip: next -->` leaves one out,
`<!--- skip: next if(condition) -->` in some jobs.
Files follow one another in one process, which imports TensorFlow once; each begins a job anew.

A snippet must not lead to a warning of Python, Keras or TensorFlow: a reader would wonder.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import unittest
import warnings
from collections.abc import Iterator

from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

import ringar


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


def main(path: str) -> None:
    """Runs the snippets of the document at `path`; the first that raises ends the program."""
    document = Document.parse(path, PythonCodeBlockParser(), SkipParser())
    for example in document.examples():
        print(f"{path}:{example.line}", flush=True)
        skipped = contextlib.suppress(unittest.SkipTest)  # `skip: next if(condition)`
        with skipped, without_warnings(f"{path}:{example.line}"):
            example.evaluate()
    ringar.shutdown()


if __name__ == "__main__":
    for path in sys.argv[1:]:
        main(path)
