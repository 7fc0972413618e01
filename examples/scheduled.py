"""A sparse regression and a matrix factorization whose variables are scheduled over ranks.

    ringarrun -np 2 python examples/scheduled.py
    ringarrun -np 2 python examples/scheduled.py --degree 3
    ringarrun -np 2 python examples/scheduled.py --problem factorization

The regression predicts the progress of diabetes from ten measurements and all their products of
two, 65 columns that depend on each other strongly (285 with those of three, `--degree 3`). A Lasso
takes few of them. Ranks hold some patients each, and update at once only variables that the
scheduler finds independent.

The factorization sees four in five pixels of scikit-learn's 1,797 images of digits, and fills in
the others. Ranks descend on blocks of the matrix that share no image and no pixel.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import ringar
from ringar.parallel import scheduled


def main() -> None:
    """Solve one of the problems."""
    options = parse()
    ringar.init()
    start = time.perf_counter()
    row = {"lasso": regression, "factorization": factorization}[options.problem](options)
    if ringar.rank() == 0:
        print("| problem | ranks | rounds | objective | at first | error | seconds |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        cells = " | ".join([options.problem, str(ringar.size()), *row])
        print(f"| {cells} | {time.perf_counter() - start:.1f} |")


def regression(options: argparse.Namespace) -> list[str]:
    """Fit the Lasso; return the rounds, the objectives and the error of predictions."""
    from sklearn.datasets import load_diabetes
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    x, y = load_diabetes(return_X_y=True)
    x = StandardScaler().fit_transform(
        PolynomialFeatures(options.degree, include_bias=False).fit_transform(x)
    )
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:340], order[340:]
    share = np.array_split(train, ringar.size())[ringar.rank()]
    scheduler = scheduled.Dynamic(picks=8, seed=options.seed)
    model = scheduled.Lasso(alpha=3.0, scheduler=scheduler, tolerance=1e-4)
    model.fit(x[share], y[share])
    if ringar.rank() == 0:
        print(f"{np.count_nonzero(model.coef_)} of {len(model.coef_)} columns are used")
    rest = y[test] - model.predict(x[test])
    error = np.sqrt(np.mean(rest**2)) / y[test].std()
    return [
        f"{model.rounds_[-1]:,}", f"{model.objectives_[-1]:.1f}", f"{model.objectives_[0]:.1f}",
        f"{error:.2f} of the deviation",
    ]  # fmt: skip


def factorization(options: argparse.Namespace) -> list[str]:
    """Factorize; return the rounds, the objectives and the error of pixels that were not seen."""
    from sklearn.datasets import load_digits

    images = load_digits().data / 16
    hidden = np.random.default_rng(0).random(images.shape) < 0.2
    rows, columns = np.nonzero(~hidden)
    share = slice(ringar.rank(), None, ringar.size())
    model = scheduled.MatrixFactorization(
        12, learning_rate=0.1, decay=0.1, epochs=options.epochs, seed=options.seed
    )
    model.fit(rows[share], columns[share], images[~hidden][share], images.shape)
    rest = images[hidden] - model.predict(*np.nonzero(hidden))
    error = np.sqrt(np.mean(rest**2)) / images[hidden].std()
    return [
        f"{options.epochs * ringar.size():,}", f"{model.objectives_[-1]:.1f}",
        f"{model.objectives_[0]:.1f}", f"{error:.2f} of the deviation",
    ]  # fmt: skip


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", choices=["lasso", "factorization"], default="lasso")
    parser.add_argument("--degree", type=int, default=2, help="of the products of measurements")
    parser.add_argument("--epochs", type=int, default=15, help="of the factorization")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
