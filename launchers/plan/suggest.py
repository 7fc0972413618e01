"""Suggestions for words that are not known: "did you mean --deadline?"."""

from __future__ import annotations

from collections.abc import Iterable


def close_to(word: str, known: Iterable[str]) -> list[str]:
    """Return the names among `known` that `word` may have been meant to be, the likeliest first.

    Names that begin with `word` are preferred to names that are spelled alike.
    """
    import difflib  # only where something is wrong

    names = sorted(set(known))
    begun = [name for name in names if len(word.lstrip("-")) > 2 and name.startswith(word)]
    return begun or difflib.get_close_matches(word, names, n=2, cutoff=0.7)


def did_you_mean(names: Iterable[str]) -> str:
    """Return the end of an error message that suggests `names`; "" if there are none."""
    found = list(names)
    if not found:
        return ""
    *others, last = found
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
