"""Agreement of ranks: the same description, work together, work of the first rank."""

from __future__ import annotations

from typing import Any

import pytest

import ringar
from ringar.collectives import agree
from ringar.errors import MismatchError, RankError

CALLER = "ringar.example"


def compared(description: dict[str, Any]) -> None:
    agree.same(description, caller=CALLER, remedy="Pass the same.")


def test_equal_descriptions() -> None:
    number, nothing = float("nan"), {"numbers": [1, (2, 3)], "none": None}
    compared({"a": {"b": number, "c": nothing}, "d": [{"e": "text"}]})


@pytest.mark.ranks(2, 3, 4)
def test_the_first_path_that_differs(rank: int, size: int) -> None:
    rest = "rank 1" if size == 2 else "ranks 1, 2" if size == 3 else "ranks 1-3"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"same": 1, "optimizer": {"rate": 2, "decay": min(rank, 1)}}, "optimizer.decay"),
        ({"layers": [{"units": 3}, {"units": min(rank, 1)}], "other": rank}, "layers.1.units"),
    ]
    for description, path in cases:
        with pytest.raises(MismatchError) as caught:
            compared(description)
        text = str(caught.value)
        assert text.startswith(
            f"rank {rank} | {CALLER}: expected the same {path} on every rank; received "
        )
        assert f"1 ({rest})" in text
        assert "0 (rank 0)" in text
        assert text.endswith(". Pass the same.")
    with pytest.raises(MismatchError, match=r"only_here on every rank; .*nothing \(rank"):
        compared({"all": 1} | ({"only_here": 2} if rank == 0 else {}))
    with pytest.raises(MismatchError, match=rf"\n  {rank * 'a' * 100}.*\(rank {rank}\)\n"):
        compared({"long": "a" * 100 * rank + "b"})


class Broken(KeyError):
    """An error of a class of this test."""


@pytest.mark.ranks(2, 3, 4)
def test_one_error_is_that_of_all(rank: int, size: int) -> None:
    for run, failing in ((agree.together, 1), (agree.first, 0)):
        number = (rank + 1 - failing) % size  # so that the failing rank is number 1

        def on_one(number: int = number) -> int:
            if number == 1:
                raise Broken("no disk")
            return number

        with pytest.raises(KeyError, match="no disk") as caught:
            run(on_one, caller=CALLER, deed="to read")
        assert isinstance(caught.value, Broken if rank == failing else RankError)
        if rank != failing:
            text = caught.value.args[0]
            assert f"{CALLER}: expected rank {failing} to read; received its error Broken" in text
            assert 'raise Broken("no disk")' in text  # the traceback
    assert agree.together(lambda: rank * 2, caller=CALLER) == [2 * n for n in range(size)]
    assert agree.first(lambda: {"rank": rank}, caller=CALLER) == {"rank": 0}


@pytest.mark.ranks(2, 3)
def test_errors_of_ringar_and_results_that_no_rank_can_send(rank: int) -> None:
    def mismatch() -> None:
        raise MismatchError("rank 0 | mine")

    with pytest.raises(MismatchError, match="mine"):
        agree.first(mismatch, caller=CALLER)
    with pytest.raises((AttributeError, TypeError), match="pickle|local object"):
        agree.together((lambda: lambda: 0) if rank == 0 else (lambda: None), caller=CALLER)
    with pytest.raises(ValueError, match="utf-8"):  # of a class that takes several arguments
        agree.first(lambda: b"\xff".decode(), caller=CALLER)
    assert ringar.size() > 1
