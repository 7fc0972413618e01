"""Runs the Python snippets of Markdown files, each file in one namespace: a script for ranks.

Snippets are the ```python blocks. What a snippet needs and a reader does not is set up in an
HTML comment, `<!--- invisible-code-block: python ... -->`; `<!--- skip: next -->` leaves one out,
`<!--- skip: next if(condition) -->` in some jobs.
Files follow one another in one process, which imports TensorFlow once; each begins a job anew.
"""

from __future__ import annotations

import contextlib
import sys
import unittest

from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

import ringar


def main(path: str) -> None:
    """Runs the snippets of the document at `path`; the first that raises ends the program."""
    document = Document.parse(path, PythonCodeBlockParser(), SkipParser())
    for example in document.examples():
        print(f"{path}:{example.line}", flush=True)
        with contextlib.suppress(unittest.SkipTest):  # `skip: next if(condition)`
            example.evaluate()
    ringar.shutdown()


if __name__ == "__main__":
    for path in sys.argv[1:]:
        main(path)
