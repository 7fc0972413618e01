"""Rules by which the ranks' values of a weight that no gradient changes become one."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import keras

from ringar.collectives.call import Call
from ringar.errors import MismatchError, UnsupportedError
from ringar.job import membership
from ringar.keras.state import listing

#: One rule for all weights, or rules by the path of a weight or its end, with wildcards.
Combine: TypeAlias = str | Mapping[str, str]

#: The collective of the errors.
CALL = Call("allgather", name="weights without gradients")

_FOR_ALL = ("mean", "first", "concatenate", "own")
_BY_PATH = (*_FOR_ALL, "sum")  # for all weights it would multiply counters of steps


class Rules:
    """Hold the rules that a user gives.

    Args:
        combine: the rule for weights of unknown meaning, or rules by path.

    Attributes:
        for_all: the rule for all weights without another, or None.

    Raises:
        ValueError: for an unknown rule.
    """

    def __init__(self, combine: Combine | None = None) -> None:
        self._by_path = dict(combine) if isinstance(combine, Mapping) else {}
        self.for_all = None if isinstance(combine, Mapping) else combine
        are_rules = all(rule in _BY_PATH for rule in self._by_path.values())
        if not are_rules or self.for_all not in (None, *_FOR_ALL):
            raise ValueError(
                f"`combine` must be one of {', '.join(map(repr, _FOR_ALL))}, or a dict of these "
                f'and "sum" by the path of a weight. Received: combine={combine!r}'
            )

    def __repr__(self) -> str:
        """Return the same text for the same rules."""
        return repr((self.for_all, sorted(self._by_path.items())))

    def of(self, variable: keras.Variable) -> str | None:
        """Return the first rule for the path of a variable."""
        return next((r for path, r in self._by_path.items() if _is_at(variable, path)), None)

    def require_paths(self, variables: Sequence[keras.Variable]) -> None:
        """Check that each path is that of a variable.

        Raises:
            ValueError: if one is not.
        """
        for path in self._by_path:
            if not any(_is_at(variable, path) for variable in variables):
                raise ValueError(
                    f"`combine` must have paths of weights that no gradient changes: "
                    f"{', '.join(v.path for v in variables) or 'none'}. Received: {path!r}"
                )

    def require_no_sum_in_elastic_jobs(self) -> None:
        """Check that no sum would lose what a rank has added.

        Raises:
            UnsupportedError: for sums in an elastic job.
        """
        if membership.is_elastic() and "sum" in self._by_path.values():
            raise UnsupportedError(
                CALL.refusal(
                    'no rule "sum" in an elastic job',
                    f"combine={self._by_path!r}",
                    "A rank that leaves takes with it what it has added. Count in a metric, or on "
                    "the rank that makes the data.",
                )
            )


def require_rules(variables: Sequence[keras.Variable]) -> None:
    """Refuse weights that differ between ranks and have no rule.

    Raises:
        MismatchError: if there are any.
    """
    if not variables:
        return
    paths = [v.path for v in variables]
    raise MismatchError(
        CALL.refusal(
            "weights that no gradient changes to be the same on every rank, or a rule for them",
            f"other values of {listing(paths)}",
            "Say how the ranks' values become one: ringar.callbacks.Distributed(combine="
            f'{{"{paths[0]}": "mean"}}), or "sum" (of what the ranks have added in an epoch), '
            '"first" (of the first rank), "concatenate" (each rank gives a part of the rows), '
            '"own" (each rank keeps its own). combine="mean" is a rule for all.',
        )
    )


def _is_at(variable: keras.Variable, path: str) -> bool:
    """Return whether `path`, which may have wildcards, is the variable's or the end of it."""
    return fnmatch.fnmatchcase(f"/{variable.path}", f"*/{path}")
