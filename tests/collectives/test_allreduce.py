"""Allreduce against NumPy, bit for bit."""

from __future__ import annotations

import hashlib
import locale
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

SHAPES = [(), (0,), (3, 0, 2), (1,), (7,), (1023,), (5, 3, 7), (9000,), (2, 1) * 4 + (2, 3)]


@pytest.mark.every_variant
@common.modes_and_dtypes(common.REDUCIBLE)
def test_every_op_and_shape(mode: str, dtype: str) -> None:
    common.check_reductions(mode, ringar.allreduce, [dtype], SHAPES)


def test_every_dtype_and_op_in_one_function(mode: str) -> None:
    common.check_reductions(mode, ringar.allreduce, common.REDUCIBLE, [(7,)])


def test_scaling(mode: str) -> None:
    factors = [(0.5, 1.0), (1.0, 0.1), (-3.0, 1 / 3), (1e-3, 1e3)]
    cases = [(op, pre, post) for op in common.OPS for pre, post in factors]
    inputs = [common.of_all_ranks(dtype, (301,)) for dtype in common.FLOATING]

    def reduce(*tensors: Any) -> list[Any]:
        return [
            ringar.allreduce(tensor, op, prescale_factor=pre, postscale_factor=post)
            for tensor in tensors
            for op, pre, post in cases
        ]

    results = common.run(mode, reduce, *[arrays[ringar.rank()] for arrays in inputs])
    expected = [
        (common.reduced(case[0], arrays, *case[1:]), (arrays[0].dtype, *case))
        for arrays in inputs
        for case in cases
    ]
    for result, (numbers, case) in zip(results, expected, strict=True):
        common.assert_same(result, numbers, case)


@pytest.mark.parametrize("dtype", common.REDUCIBLE)
def test_sizes_where_the_algorithm_changes(
    dtype: str, exchange: Callable[[Any], list[Any]]
) -> None:
    """Around one exchange or blocks, one block or two; and all ranks get the same bits."""
    ranks, item = ringar.size(), common.numpy_dtype(dtype).itemsize
    block = ranks * common.SLICE_BYTES
    digest = hashlib.sha256()
    for edge in (common.SMALL_BYTES, common.SLICE_BYTES, block, 2 * block, 5 * block // 2):
        for near in (-1, 0, 1):
            inputs = common.of_all_ranks(dtype, (edge // item + near,))
            result = ringar.allreduce(inputs[ringar.rank()], ringar.Sum)
            common.assert_same(result, common.reduced(ringar.Sum, inputs), (edge, near))
            digest.update(result.tobytes())
    assert len(set(exchange(digest.hexdigest()))) == 1


def test_many_blocks(mode: str) -> None:
    for dtype in ("float32", "bfloat16", "int8"):
        count = (8 << 20) // common.numpy_dtype(dtype).itemsize
        inputs = [np.resize(a, count + 1) for a in common.of_all_ranks(dtype, (99_991,))]
        results = common.run(
            mode,
            lambda t: [ringar.allreduce(t, ringar.Sum), ringar.allreduce(t[2:], ringar.Sum)],
            inputs[ringar.rank()],
        )
        expected = common.reduced(ringar.Sum, inputs)
        common.assert_all_same(results, [expected, expected[2:]], dtype)


def special_values(dtype: str, rank: int) -> np.ndarray:
    """Every value of a 16-bit dtype, in an order of each rank's own: NaN, infinities, denormals."""
    bits = np.random.default_rng(rank).permutation(1 << 16).astype(np.uint16)
    return bits.view(common.numpy_dtype(dtype))


def reduced_by_every_op(
    mode: str, inputs: Sequence[list[np.ndarray]], ops: Sequence[Any]
) -> Iterator[tuple[np.ndarray, ringar.ReduceOp, np.ndarray, np.ndarray]]:
    """Each input, by rank, with each op, what it is reduced to, and what that should be."""

    def reduce(*tensors: Any) -> list[Any]:
        return [ringar.allreduce(tensor, op) for tensor in tensors for op in ops]

    results = common.run(mode, reduce, *[arrays[ringar.rank()] for arrays in inputs])
    cases = [(arrays, op) for arrays in inputs for op in ops]
    for result, (arrays, op) in zip(results, cases, strict=True):
        yield arrays[0], op, result, common.reduced(op, arrays)


def test_special_values(mode: str, exchange: Callable[[Any], list[Any]]) -> None:
    inputs = [
        [special_values(dtype, r)[:count] for r in range(ringar.size())]
        for dtype in ("float16", "bfloat16")
        for count in (1 << 16, 4000)
    ]
    bits = hashlib.sha256()
    for array, op, result, expected in reduced_by_every_op(mode, inputs, common.OPS):
        if op is common.OPS[0]:
            bits.update(result.tobytes())
        if op in (ringar.Min, ringar.Max):  # which zero it is when both are there is left open
            with np.errstate(all="ignore"):
                zero = expected.dtype.type(0)
                result, expected = result + zero, expected + zero
        common.assert_same(result, expected, (array.dtype, array.size, op))
    assert len(set(exchange(bits.hexdigest()))) == 1


def test_special_values_of_wide_dtypes(mode: str) -> None:
    inputs = []
    for dtype in ("float32", "float64"):
        tiny = np.finfo(dtype).smallest_subnormal
        numbers = [0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, 1.0, -1.0, 1e30]
        specials = np.tile(np.array(numbers, dtype), 11)
        inputs.append([np.roll(specials, 3 * r)[:107] for r in range(ringar.size())])
    cases = reduced_by_every_op(mode, inputs, (ringar.Sum, ringar.Product))
    for array, op, result, expected in cases:
        common.assert_same(result, expected, (array.dtype, op))


def mixed_group(rank: int) -> list[np.ndarray]:
    shapes: list[tuple[int, ...]] = [(), (0,), (5,), (3, 4), (1000,), (2, 0), (70, 90)]
    return [
        common.values(dtype, shape, 100 * rank + i)
        for i, shape in enumerate(shapes * 4)
        for dtype in ("float32", "int64", "bfloat16", "float64", "uint8")
    ]


def test_group_of_mixed_dtypes(mode: str) -> None:
    groups = [mixed_group(r) for r in range(ringar.size())]
    results = common.run(
        mode, lambda *ts: ringar.grouped_allreduce(ts, ringar.Sum), *groups[ringar.rank()]
    )
    expected = [common.reduced(ringar.Sum, arrays) for arrays in zip(*groups, strict=True)]
    common.assert_all_same(results, expected)


def test_group_of_many(mode: str) -> None:
    """More tensors than anything has fixed room for, together more than one block."""
    count = 40 if mode == "compiled" else 400
    inputs = [common.of_all_ranks("float32", (i * 7,), i) for i in range(count)]
    results = common.run(mode, ringar_group, *[arrays[ringar.rank()] for arrays in inputs])
    common.assert_all_same(results, [common.reduced(ringar.Average, a) for a in inputs])


def ringar_group(*tensors: Any) -> list[Any]:
    return ringar.grouped_allreduce(tensors)


def test_group_of_nothing() -> None:
    assert ringar.grouped_allreduce([]) == []


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compression(mode: str, name: str) -> None:
    """Inside one host nothing is narrowed: results are those without compression."""
    compression = getattr(ringar.Compression, name)
    for dtype in ("float32", "float64", "float16", "int32"):
        inputs = common.of_all_ranks(dtype, (333,))
        results = common.run(
            mode,
            lambda t: [ringar.allreduce(t, ringar.Sum, compression=compression)],
            inputs[ringar.rank()],
        )
        common.assert_same(results[0], common.reduced(ringar.Sum, inputs), dtype)


@pytest.mark.parametrize("way", ["eager", "graph", "compiled", "numpy"])
def test_compressor_of_ones_own(way: str) -> None:
    class Halves:  # derived from nothing of ringar's
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return tensor / 2, 2

        @staticmethod
        def decompress(tensor: Any, context: Any) -> Any:
            return tensor * context

    inputs = common.of_all_ranks("float32", (333,))
    results = common.run(
        way,
        lambda t: [ringar.allreduce(t, ringar.Sum, compression=Halves)],  # type: ignore[arg-type]
        inputs[ringar.rank()],
    )
    common.assert_same(results[0], common.reduced(ringar.Sum, inputs))


def test_algorithms(mode: str) -> None:
    inputs = common.of_all_ranks("float32", (333,))
    algorithms = (None, "auto", "hierarchical")

    def reduce(tensor: Any) -> list[Any]:
        return [
            result
            for algorithm in algorithms
            for result in (
                ringar.allreduce(tensor, ringar.Sum, algorithm=algorithm),
                *ringar.grouped_allreduce([tensor], ringar.Sum, algorithm=algorithm),
            )
        ]

    results = common.run(mode, reduce, inputs[ringar.rank()])
    expected = [common.reduced(ringar.Sum, inputs)] * 2
    for i, algorithm in enumerate(algorithms):
        common.assert_all_same(results[2 * i : 2 * i + 2], expected, algorithm)


def test_what_the_engine_is_told() -> None:
    @tf.function
    def reduce(tensor: tf.Tensor) -> tf.Tensor:
        return ringar.allreduce(tensor, compression=ringar.Compression.fp16, algorithm="ring")

    graph = reduce.get_concrete_function(tf.TensorSpec([3], tf.float32)).graph
    (spec,) = (op.get_attr("spec").decode() for op in graph.get_operations() if "Ringar" in op.type)
    assert " wire=float16 algorithm=ring name=" in spec


@pytest.mark.parametrize("options", [{"algorithm": "tree"}, {"compression": "fp16"}])
def test_bad_arguments(options: dict[str, Any]) -> None:
    (argument,) = options
    with pytest.raises(ValueError, match=rf"`{argument}` must be .* Received: {argument}="):
        ringar.allreduce(np.ones(3), **options)
    with pytest.raises(ValueError, match=rf"`{argument}` must be .* Received: {argument}="):
        ringar.grouped_allreduce([np.ones(3)], **options)


@pytest.mark.parametrize("way", ["eager", "graph", "compiled"])
@pytest.mark.parametrize("op", [ringar.Sum, ringar.Average])
def test_slices_are_gathered(way: str, op: ringar.ReduceOp) -> None:
    rank, ranks = ringar.rank(), ringar.size()

    def reduce(rows: tf.Tensor, indices: tf.Tensor) -> list[tf.Tensor]:
        slices = tf.IndexedSlices(rows, indices, tf.constant([10, 2], tf.int64))
        reduced = ringar.allreduce(slices, op)
        assert isinstance(reduced, tf.IndexedSlices)
        return [tf.convert_to_tensor(reduced)]

    row_count = 3 if way == "compiled" else rank + 1  # rows differ between ranks
    counts = [3 if way == "compiled" else r + 1 for r in range(ranks)]
    rows = np.full((row_count, 2), rank + 1.0, np.float32)
    indices = (np.arange(row_count, dtype=np.int64) + rank) % 10
    dense = np.zeros((10, 2), np.float32)
    for r, count in enumerate(counts):
        np.add.at(dense, (np.arange(count) + r) % 10, np.float32(r + 1))
    if op is ringar.Average:
        dense /= ranks
    result = common.run(way, reduce, rows, indices)[0]
    np.testing.assert_allclose(result, dense, rtol=1e-6)


@pytest.mark.parametrize("way", ["eager", "graph", "compiled"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_slices_are_narrowed_if_there_are_hosts_between_which(
    hosts: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = ringar.size()
    if hosts > ranks:
        pytest.skip("one rank is on one host")
    monkeypatch.setattr(ringar.job.place, "local_size", lambda: ranks // hosts)
    tenths = {"float32": np.float32(0.1), "float64": np.float64(0.1)}

    def gather(singles: tf.Tensor, doubles: tf.Tensor) -> list[tf.Tensor]:
        options: Any = {"op": ringar.Sum, "compression": ringar.Compression.fp16}
        where = (tf.constant([0]), tf.constant([4, 2]))
        results = [
            ringar.allreduce(tf.IndexedSlices(v, *where), **options) for v in (singles, doubles)
        ]
        return [slices.values for slices in results]

    inputs = [np.full((1, 2), tenth) for tenth in tenths.values()]
    singles, doubles = common.run(way, gather, *inputs)
    expected = np.float32(np.float16(0.1)) if hosts > 1 else tenths["float32"]
    common.assert_same(singles, np.full((ranks, 2), expected, np.float32))
    common.assert_same(doubles, np.full((ranks, 2), 0.1))


def test_slices_that_cannot_be_reduced() -> None:
    where = {"indices": tf.constant([0], tf.int64), "dense_shape": tf.constant([4, 2])}
    slices = tf.IndexedSlices(tf.ones([1, 2]), **where)
    with pytest.raises(
        ValueError, match=r"rank \d \| allreduce .slices.: .*Sum or ringar.Average.*MAX"
    ):
        ringar.allreduce(slices, ringar.Max)
    integers = tf.IndexedSlices(tf.ones([1, 2], tf.int32), **where)
    cases: list[dict[str, Any]] = [{}, {"op": ringar.Sum, "prescale_factor": 0.5}]
    for options in cases:
        # On rank 0 alone, and told to the others, who have slices of floats.
        argument = integers if ringar.rank() == 0 else slices
        with pytest.raises(common.REFUSED, match=r"expected a floating dtype.*received int32"):
            ringar.allreduce(argument, **options)
    assert ringar.allreduce(integers, ringar.Sum).values.shape == (ringar.size(), 2)


def test_factors_of_every_kind(mode: str) -> None:
    """A factor that NumPy has computed is as good as one of Python."""
    array = np.ones(3, np.float32)
    factors = [2, 0.5, np.float32(0.5), np.float64(0.1), np.int64(3), np.array(0.25)]
    results = common.run(
        mode,
        lambda t: [ringar.allreduce(t, prescale_factor=f, postscale_factor=f) for f in factors],
        array,
    )
    for factor, result in zip(factors, results, strict=True):
        np.testing.assert_allclose(result, float(factor) ** 2, rtol=1e-6)


def test_what_numpy_arrays_may_look_like() -> None:
    ranks = ringar.size()
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    frozen = base.copy()
    frozen.flags.writeable = False
    for array in (base.T, base[::2, ::3], base[::-1], np.asfortranarray(base), frozen):
        copy = array.copy()
        common.assert_same(ringar.allreduce(array, ringar.Sum), np.ascontiguousarray(copy * ranks))
        common.assert_same(array, copy)
    for scalar in (np.float32(2.5), np.array(2.5, np.float32)):
        common.assert_same(ringar.allreduce(scalar, ringar.Sum), np.array(2.5 * ranks, np.float32))


def test_foreign_byte_order() -> None:
    array = np.arange(5, dtype=">f4")
    result = ringar.allreduce(array, ringar.Sum)
    assert result.tolist() == [ringar.size() * x for x in range(5)]


def test_what_tensors_may_look_like() -> None:
    ranks = ringar.size()
    variable = tf.Variable([1.0, 2.0])
    for value in (variable, [1.0, 2.0], tf.constant([1.0, 2.0])):
        result = ringar.allreduce(value, ringar.Sum)
        assert isinstance(result, tf.Tensor)
        common.assert_same(result, np.array([ranks, 2 * ranks], np.float32))
    common.assert_same(variable.numpy(), np.array([1, 2], np.float32))


def test_one_graph_for_all_shapes() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32)])
    def reduce(tensor: tf.Tensor) -> tf.Tensor:
        result = ringar.allreduce(tensor, ringar.Sum)
        assert result.shape.as_list() == [None, None]
        return result

    for shape in ((2, 3), (0, 5), (300, 200)):
        inputs = common.of_all_ranks("float32", shape)
        result = reduce(tf.constant(inputs[ringar.rank()]))
        common.assert_same(result.numpy(), common.reduced(ringar.Sum, inputs))


def test_shape_is_known_in_a_graph() -> None:
    @tf.function
    def reduce(tensor: tf.Tensor) -> tf.Tensor:
        result = ringar.allreduce(tensor)
        assert result.shape == tensor.shape == (2, 3)
        return result

    reduce(tf.ones([2, 3]))


def test_average_of_integers_is_refused(mode: str) -> None:
    with pytest.raises(common.REFUSED, match=r"rank \d \| allreduce(?s:.)*Average.*received int32"):
        common.run(mode, lambda t: [ringar.allreduce(t)], np.arange(3, dtype=np.int32))


@pytest.fixture
def comma_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A locale in which a half is written 0,5."""
    localedef = shutil.which("localedef")
    if localedef is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("no localedef, or no source of de_DE")
    folder = tmp_path / "de_DE.utf8"
    subprocess.run([localedef, "-i", "de_DE", "-f", "UTF-8", folder], check=False)
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    before = locale.setlocale(locale.LC_NUMERIC)
    locale.setlocale(locale.LC_NUMERIC, "de_DE.utf8")
    yield
    locale.setlocale(locale.LC_NUMERIC, before)


def test_factors_do_not_depend_on_the_locale(comma_locale: None) -> None:
    assert locale.localeconv()["decimal_point"] == ","
    inputs = common.of_all_ranks("float32", (11,))
    for mode in common.MODES:
        result = common.run(
            mode, lambda t: [ringar.allreduce(t, prescale_factor=1.5)], inputs[ringar.rank()]
        )[0]
        common.assert_same(result, common.reduced(ringar.Average, inputs, 1.5), mode)


def test_ten_thousand_small_ones() -> None:
    ranks, rank = ringar.size(), ringar.rank()
    array = np.zeros(3, np.float32)
    for i in range(10_000):
        array[:] = i + rank
        result = ringar.allreduce(array, ringar.Sum)
        assert result[2] == ranks * i + ranks * (ranks - 1) / 2


def test_ten_thousand_small_ones_in_a_loop_of_a_graph() -> None:
    @tf.function
    def loop(start: tf.Tensor) -> tf.Tensor:
        total = start
        for _ in tf.range(10_000):
            total += ringar.allreduce(tf.ones([5]), ringar.Sum)
        return total

    common.assert_same(loop(tf.zeros([5])).numpy(), np.full(5, 1e4 * ringar.size(), np.float32))


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.deadline(400)
@pytest.mark.parametrize("way", ["numpy", "graph", "compiled"])
def test_more_than_two_gigabytes(way: str) -> None:
    count = (1 << 31) + 12345
    if way == "numpy":
        result = ringar.allreduce(np.full(count, ringar.rank() + 1, np.int8), ringar.Sum)
    else:

        @tf.function(jit_compile=way == "compiled")
        def reduce(value: tf.Tensor) -> tf.Tensor:
            return ringar.allreduce(tf.fill([count], value), ringar.Sum)

        result = reduce(tf.constant(ringar.rank() + 1, tf.int8)).numpy()
    assert result.shape == (count,)
    assert (result == 3).all()
