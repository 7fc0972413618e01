"""Shares of a `tf.data.Dataset`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringar.data import early
from ringar.data.deal import Deal
from ringar.job import log

_log = log.logger(__name__)


def deal(dataset: tf.data.Dataset, rule: Deal) -> tf.data.Dataset:
    """Return this rank's elements of `dataset`, dealt out in turn.

    Raises:
        ValueError: if there is less than one element for each rank.
    """
    warn_of_different_orders(dataset)
    base, block, rebuild = early.below_maps(dataset)
    if block == 1:
        return rebuild(_deal_elements(base, rule))
    count = int(dataset.cardinality())
    if rule.remainder == "wrap" or (
        rule.remainder == "drop" and count == tf.data.UNKNOWN_CARDINALITY
    ):
        return _deal_elements(dataset, rule)
    if count >= 0:
        rule.count(count)
        base = base.take(rule.dealt(count) * block)
    return rebuild(_deal_blocks(base, rule, block))


def _deal_elements(dataset: tf.data.Dataset, rule: Deal) -> tf.data.Dataset:
    count = int(dataset.cardinality())
    if count == tf.data.UNKNOWN_CARDINALITY and rule.remainder != "keep":
        if rule.remainder == "wrap":
            # With size-1 more elements, the last round is complete, and no further one is.
            dataset = dataset.concatenate(dataset.repeat().take(rule.size - 1))
        return _deal_rounds(dataset, rule)
    if count >= 0:
        rule.count(count)
        extra = rule.dealt(count) - count
        if extra > 0:
            dataset = dataset.concatenate(dataset.repeat().take(extra))
        elif extra < 0:
            dataset = dataset.take(count + extra)
    return dataset.shard(rule.size, rule.rank)


def _deal_rounds(dataset: tf.data.Dataset, rule: Deal) -> tf.data.Dataset:
    """Return one element of each round of `size` elements; incomplete rounds are dropped."""

    def own_element(*window: Any) -> tf.data.Dataset:
        return tf.data.Dataset.zip(element_of(dataset, window)).skip(rule.rank).take(1)

    return dataset.window(rule.size, drop_remainder=True).flat_map(own_element)


def _deal_blocks(dataset: tf.data.Dataset, rule: Deal, block: int) -> tf.data.Dataset:
    """Return this rank's blocks of `block` consecutive elements, dealt out in turn."""

    def is_own(number: tf.Tensor, _: Any) -> tf.Tensor:
        return number // block % rule.size == rule.rank

    count = int(dataset.cardinality())
    share = dataset.enumerate().filter(is_own).map(lambda _, element: element)
    if count >= 0:
        rounds, rest = divmod(count, block * rule.size)
        count = rounds * block + min(max(rest - rule.rank * block, 0), block)
    if count != tf.data.UNKNOWN_CARDINALITY:
        share = share.apply(tf.data.experimental.assert_cardinality(count))
    return share


def element_of(dataset: tf.data.Dataset, arguments: tuple[Any, ...]) -> Any:
    """Return the element that `tf.data` has passed to a function as `arguments`."""
    # `tf.data` unpacks tuples, those of one component, too, and nothing else.
    return arguments if type(dataset.element_spec) is tuple else arguments[0]


def warn_of_different_orders(dataset: tf.data.Dataset) -> None:
    """Warn if `dataset` is shuffled without a seed: every rank shuffles in its own way then."""
    if type(dataset).__name__ == "_ShuffleDataset":
        seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
        if all(isinstance(seed, tf.Tensor) and int(seed) == 0 for seed in seeds):
            _log.warning(
                "ringar.data.shard was given a dataset that is shuffled without a seed: ranks "
                "shuffle in different orders, so that some elements occur on several ranks and "
                "others on none. Shuffle with a seed, call ringar.set_random_seed before, or "
                "shuffle after sharding."
            )
    for source in getattr(dataset, "_inputs", list)():
        warn_of_different_orders(source)
