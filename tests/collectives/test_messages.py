"""What errors say, where that takes care; which error comes when: tests/faults."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

ERRORS = (ringar.errors.MismatchError, tf.errors.OpError)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("name", ["ä" * 52, "x" + "€" * 200, "plain"])
def test_names_of_any_length_and_script(mode: str, name: str) -> None:
    """A name is cut off in messages, but not in the middle of a character."""
    array = np.ones(2 + ringar.rank(), np.float32)
    with pytest.raises(ERRORS) as caught:
        common.run(mode, lambda t: [ringar.allreduce(t, ringar.Sum, name=name)], array)
    message = str(caught.value)
    assert f"rank {ringar.rank()} | allreduce" in message
    assert f'"{name[:30]}' in message
    assert f'rank 1: allreduce "{name[:30]}' in message


@pytest.mark.ranks(2, 3, 4)
def test_names_that_differ_late_are_different(mode: str) -> None:
    name = "n" * 500 + str(ringar.rank())
    with pytest.raises(ERRORS, match="expected the same collective"):
        common.run(mode, lambda t: [ringar.allreduce(t, name=name)], np.ones(1, np.float32))


@pytest.mark.ranks(3, 4)
def test_the_majority_and_the_others_are_named(mode: str) -> None:
    """A line for each group of ranks, however many there are; the majority's comes first."""
    rank, size = ringar.rank(), ringar.size()
    usual, odd = (f'allreduce "{name}" of float32[2], op=sum' for name in ("usual", "odd"))
    cases = {1: [f"ranks 0, 2 (2 of 3): {usual}", f"rank 1: {odd}"],
             0: [f"ranks 1, 2 (2 of 3): {usual}", f"rank 0: {odd}"]}  # fmt: skip
    if size == 4:
        cases = {2: [f"ranks 0, 1, 3 (3 of 4): {usual}", f"rank 2: {odd}"],
                 0: [f"ranks 1-3 (3 of 4): {usual}", f"rank 0: {odd}"]}  # fmt: skip
    for odd_rank, lines in cases.items():
        name = "odd" if rank == odd_rank else "usual"
        with pytest.raises(ERRORS) as caught:
            common.run(
                mode, lambda t, name=name: [ringar.allreduce(t, ringar.Sum, name=name)],
                np.ones(2, np.float32),
            )  # fmt: skip
        received = "".join(f"\n  {line}" for line in lines)
        assert f"on every rank, received{received}\nEvery rank must issue" in str(caught.value)


@pytest.mark.ranks(3, 4)
def test_without_a_majority_groups_are_in_rank_order() -> None:
    names = ["b", "a", "c"] if ringar.size() == 3 else ["b", "a", "a", "b"]
    with pytest.raises(ringar.errors.MismatchError) as caught:
        ringar.allreduce(np.ones(2), ringar.Sum, name=names[ringar.rank()])
    groups = {3: ["rank 0", "rank 1", "rank 2"], 4: ["ranks 0, 3", "ranks 1, 2"]}[ringar.size()]
    received = "".join(
        f'\n  {group}: allreduce "{name}" of float64[2], op=sum'
        for group, name in zip(groups, names, strict=False)
    )
    assert f"received{received}\nEvery rank must" in str(caught.value)


def test_blanks_in_names(mode: str) -> None:
    """The spec is one line: line breaks and the like become blanks, on all ranks alike."""
    name = "a\nname \t name=with dtype=odd things "
    result = common.run(
        mode, lambda t: [ringar.allreduce(t, ringar.Sum, name=name)], np.ones(2, np.float32)
    )
    assert result[0].tolist() == [ringar.size()] * 2
    with tf.GradientTape() as tape:
        x = tf.ones([2])
        tape.watch(x)
        y = ringar.allreduce(x, ringar.Sum, name=name)
    assert tape.gradient(y, x).numpy().tolist() == [ringar.size()] * 2


@tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None], tf.float32)])
def of_unknown_length(tensor: tf.Tensor) -> tf.Tensor:
    return ringar.allreduce(tensor, name="t")


def slices() -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "dtype": (
        lambda: ringar.allgather(tf.constant(["a"]), name="t"),
        r'allgather "t": expected a dtype out of .*; received string\. Cast it first',
    ),
    "op": (
        lambda: ringar.reducescatter(np.ones(2), "sum", name="t"),  # type: ignore[arg-type]
        r'reducescatter "t": expected an op out of ringar\.Sum, .*; received \'sum\'\. Pass one',
    ),
    "process set": (
        lambda: ringar.barrier(name="t", process_set=ringar.ProcessSet([0])),
        r'barrier "t": expected a process set that is in use; received ProcessSet\(.*\)\. Call ',
    ),
    "op of slices": (
        lambda: ringar.allreduce(slices(), ringar.Max, name="t"),
        r'allreduce "t": expected op ringar\.Sum or .*; received ReduceOp\.MAX\. tf\.convert_to',
    ),
    "shape": (
        lambda: of_unknown_length(tf.ones([3])),
        r'allreduce "t": expected tensors of a static shape .*; received shape \(None,\)\. Give ',
    ),
    "splits": (
        lambda: tf.function(
            lambda: ringar.alltoall(tf.ones([6]), [6] * ringar.size(), name="t"), jit_compile=True
        )(),
        r'alltoall "t": expected for .* no splits .*; received shape \(6,\) and splits .*\. Leave ',
    ),
}


def test_a_masked_array_keeps_its_mask_or_is_refused() -> None:
    """Refused by every collective, and beside arrays without a mask."""
    masked = np.ma.array([1.0, 2.0], mask=[True, False])
    for function in (ringar.allreduce, ringar.allgather, ringar.broadcast, ringar.alltoall):
        with pytest.raises(
            TypeError, match=f"ringar.{function.__name__} expected .* without a mask"
        ):
            function(masked)
    with pytest.raises(TypeError, match="without a mask"):
        ringar.grouped_allreduce([np.ones(2), masked])


@pytest.mark.parametrize("case", REFUSED)
def test_what_one_rank_finds_by_itself(case: str) -> None:
    """Who, in which collective, what was expected, what was received, and what to do."""
    refused, message = REFUSED[case]
    with pytest.raises((ValueError, ringar.errors.UnsupportedError)) as caught:
        refused()
    assert re.match(rf"rank {ringar.rank()} \| {message}", str(caught.value)), str(caught.value)
