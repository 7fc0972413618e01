"""Proposals by Bayesian optimization: Optuna's tree-structured Parzen estimator.

TPE (Bergstra et al., "Algorithms for hyper-parameter optimization", 2011) models the settings that
were good and those that were bad, and proposes where the ratio of their densities is highest. It
takes sizes and names alike, and needs NumPy alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from ringar.errors import UnsupportedError
from ringar.keras.tuned import Settings
from ringar.keras.tuning.space import Space

if TYPE_CHECKING:
    import optuna

_AT_RANDOM = 6
"""Proposals before there is enough to build a model on, the defaults included."""
_SEED = 0


class BayesianSampler:
    """Propose settings of a space; the same ones for the same seconds.

    Args:
        space: the settings that may be proposed.

    Raises:
        UnsupportedError: Optuna is missing.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        library = _optuna()
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            # Sizes are numbered by their order; the default, 0, is an order of its own.
            name: library.distributions.CategoricalDistribution(tuple(range(len(values))))
            if name in ("algorithm", "compression")
            else library.distributions.IntDistribution(0, len(values) - 1)
            for name, values in space.dimensions.items()
        }
        with _quiet(library):
            sampler = library.samplers.TPESampler(seed=_SEED, n_startup_trials=_AT_RANDOM)
            self._study: optuna.Study = library.create_study(sampler=sampler)
            self._study.enqueue_trial(dict.fromkeys(space.dimensions, 0))
        self._library = library
        self._trial: optuna.Trial | None = None

    def ask(self) -> Settings:
        """Return settings to try; the first ones are the defaults."""
        with _quiet(self._library):
            self._trial = self._study.ask(self._distributions)
        dimensions = self._space.dimensions
        return self._space.settings(
            {name: dimensions[name][index] for name, index in self._trial.params.items()}
        )

    def tell(self, seconds: float) -> None:
        """Take the seconds of a step with the last settings."""
        assert self._trial is not None
        with _quiet(self._library):
            self._study.tell(self._trial, seconds)


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise UnsupportedError(
            f"Autotune needs Optuna, which is missing: {error}. Install it with: pip install optuna"
        ) from error
    return optuna


@contextmanager
def _quiet(library: ModuleType) -> Iterator[None]:
    """Keep Optuna from writing to standard error, and leave its level to the program."""
    level = library.logging.get_verbosity()
    library.logging.set_verbosity(library.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        library.logging.set_verbosity(level)
