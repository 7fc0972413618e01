"""A tanh RNN, its backward pass by a scan, and the check of its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringar.cupy import scan

TOLERANCE = 1e-4
"""Relative to the largest gradient on the way: float32, summed in another order."""


@dataclass
class Weights:
    """Of h_t = tanh(W h_{t-1} + U x_t + b): [units, units], [units, inputs], [units]."""

    recurrent: Any
    inputs: Any
    bias: Any


def forward(arrays: Any, weights: Weights, x: Any) -> Any:
    """Returns states h_1 … h_n [n, batch, units] for x [n, batch, inputs], from h_0 = 0."""
    states = arrays.empty((*x.shape[:2], len(weights.bias)), x.dtype)
    h = arrays.zeros_like(states[0])
    for t, now in enumerate(x @ weights.inputs.T + weights.bias):
        h = arrays.tanh(h @ weights.recurrent.T + now)
        states[t] = h
    return states


@dataclass
class Backward:
    """The backward pass by a scan.

    Attributes:
        arrays: the library of arrays, `cupy` (`numpy` in tests).
        scan: `ringar.cupy.scan`, or what does the same.
        jacobians: (1 - h^2) [..., units, 1] and W to their products.
    """

    arrays: Any
    scan: Callable[..., Any]
    jacobians: Callable[[Any, Any], Any]

    def states(self, weights: Weights, h: Any, gradient: Any) -> Any:
        """Returns dl/dh_0 … dl/dh_n for states h_1 … h_n and dl/dh_n."""
        return self.scan(self.jacobians(h[..., None], weights.recurrent), gradient, adjoint=True)

    def __call__(self, weights: Weights, x: Any, h: Any, gradient: Any) -> Weights:
        """Returns the gradients of the weights."""
        inner = self.states(weights, h, gradient)[1:] * (1 - h * h)
        rows = inner.reshape(-1, inner.shape[-1])
        batch = h.shape[1]
        before = h[:-1].reshape(-1, h.shape[-1])  # h_0 = 0 adds nothing
        return Weights(rows[batch:].T @ before, rows.T @ x.reshape(len(rows), -1), rows.sum(axis=0))


def on_gpu(cupy: Any) -> Backward:
    """Returns the backward pass on a GPU, where one small kernel forms the Jacobians."""
    kernel = cupy.ElementwiseKernel("T h, T w", "T j", "j = (1 - h * h) * w", "rnn_jacobians")
    return Backward(cupy, scan, kernel)


def serial(recurrent: np.ndarray, h: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Returns dl/dh_0 … dl/dh_n in float64, on the CPU, one product after the other."""
    out = np.empty((len(h) + 1, *gradient.shape))
    out[-1] = gradient
    for t in range(len(h), 0, -1):
        out[t - 1] = (out[t] * (1 - h[t - 1].astype(np.float64) ** 2)) @ recurrent
    return out


def count_wrong(arrays: Any, result: Any, expected: Any) -> int:
    """Counts steps and examples whose gradient is wrong or not finite."""
    size, off = (arrays.abs(a).max(-1) for a in (expected, result - expected))
    if arrays is not np:
        size, off = size.get(), off.get()
    largest = np.maximum.accumulate(size[::-1], axis=0)[::-1]
    return int((~(off <= TOLERANCE * largest)).sum())
