"""Suggestions for words that are not known: "did you mean --deadline?"."""

from __future__ import annotations

from collections.abc import Iterable


def close_to(word: str, candidates: Iterable[str]) -> list[str]:
    """Return the `candidates` that `word` may have been meant to be, the likeliest first.

    Names that begin with `word` are preferred to names with a similar spelling.
    """
    import difflib  # only where something is wrong

    names = sorted(set(candidates))
    completions = [name for name in names if len(word.lstrip("-")) > 2 and name.startswith(word)]
    return completions or difflib.get_close_matches(word, names, n=2, cutoff=0.7)


def did_you_mean(names: Iterable[str]) -> str:
    """Return the end of an error message that suggests `names`; "" if there are none."""
    suggestions = list(names)
    if not suggestions:
        return ""
    *head, last = suggestions
    return f"; did you mean {', '.join(head)}{' or ' if head else ''}{last}?"
