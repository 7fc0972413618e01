"""Random numbers on several ranks: alike where ranks must agree, different where they must not.

The rule: what decides the initial weights and the order of the data is the same on all ranks, what
a model draws while it trains is different on each.

- Python's, NumPy's and TensorFlow's seeds are the same: `Dataset.shuffle`, `np.random.permutation`
  and the initializers of layers do the same everywhere.
- The `SeedGenerator` of a layer (`Dropout`, `GaussianNoise`, augmentation), and the one that Keras
  uses where a layer has none, differ. Rank 0 keeps its state. If the state of another rank is that
  of a rank before it, the rank's number is mixed into the seed, and the counter stays. So training
  that resumes on all ranks with the states of rank 0 goes on with the numbers that it would have
  drawn, and states that differ already stay.
- On a grid, the number of the model group takes the place of the rank: the ranks of a group compute
  for the same examples, and need the same masks.
"""

from __future__ import annotations

import random

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state  # the generator, in no public place

from ringar.collectives import allgather
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.sharding.grid import Grid


def set_random_seed(seed: int) -> None:
    """Set the random seeds of this rank: of Python, NumPy, TensorFlow and Keras.

    Call it on every rank with the same seed, after `ringar.init()` and before the model is made.
    Initial weights, and data that are shuffled before `ringar.data.shard`, are then the same on all
    ranks. `ringar.callbacks.Distributed()` makes Dropout and other random layers differ between the
    ranks when training begins; for a training loop of your own, call `ringar.separate_seeds`.
    TensorFlow's global generator (`tf.random.get_global_generator`) gets a seed of its own on each
    rank. `tf.random.normal` and the like without a generator draw the same numbers on all ranks.

    On one rank the function does what `keras.utils.set_random_seed` of the newest Keras does, and
    seeds TensorFlow's global generator.

    Args:
        seed: any whole number from 0 to 2^32 - 1, the same on all ranks.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `seed` is no whole number.
    """
    rank = place.rank()
    keras.utils.set_random_seed(seed)
    # Keras before 3.13 keeps the generator of its random functions as it is.
    global_state.set_global_attribute("global_seed_generator", None)
    tf.random.set_global_generator(tf.random.Generator.from_seed(mixed(seed, rank)))


def separate_seeds(
    model: keras.Model, process_set: ProcessSet | None = None, grid: Grid | None = None
) -> None:
    """Make the random layers of `model` draw other numbers on each rank. Collective.

    `ringar.callbacks.Distributed()` does this in `fit`. A training loop of your own calls it before
    its first step. Where ranks draw different numbers already, nothing changes.

    Args:
        model: a model; its layers exist, built or not.
        process_set: the ranks that train together; by default all.
        grid: the grid of a model that is split; the ranks of a model group draw the same numbers.
    """
    ranks = or_all(process_set)
    if ranks.size() == 1:
        return
    states = [*_states(model), _global_state()]
    seeds = np.asarray([[keras.ops.convert_to_numpy(state) for state in states]], np.int64)
    everyone = np.asarray(allgather(seeds, name="seeds", process_set=process_set))
    ranks_per_share = 1 if grid is None else grid.model
    share = ranks.rank() // ranks_per_share
    before = everyone[: share * ranks_per_share]
    for state, value, of_ranks in zip(states, seeds[0], before.swapaxes(0, 1), strict=True):
        if (of_ranks == value).all(axis=1).any():
            state.assign(np.asarray([mixed(int(value[0]), share), value[1]]))


def mixed(seed: int, number: int) -> int:
    """Return a seed made of `seed` and the number of a rank; `seed` itself for rank 0."""
    if number == 0:
        return seed
    words = np.random.SeedSequence([seed % 2**64, number]).generate_state(1)
    return int(words[0] >> 1)  # the dtype of a state may be int32


def _states(model: keras.Model) -> list[keras.Variable]:
    states = {id(v): v for v in model.variables if v.name == "seed_generator_state"}
    return list(states.values())


def _global_state() -> keras.Variable:
    """Return the state of Keras' own generator, made as Keras would, but without a trace."""
    from keras.src.random.seed_generator import global_seed_generator

    # Keras draws the first seed from Python's generator, where it is needed for the first time.
    # Numbers that the script draws later must not depend on whether that was here.
    before = random.getstate()
    state = global_seed_generator().state
    random.setstate(before)
    return state
