"""Predictions beyond the hosts that there are: layers, steps, published figures, measured ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulate import __main__ as simulate
from benchmarks.simulate import measured, published
from benchmarks.simulate.networks import NETWORKS, Layer, uniform
from benchmarks.simulate.prediction import Workload, predict, step
from ringar import cost_model
from ringar.job.cost_model import Parameters

pytestmark = pytest.mark.ranks(1)

SLOW = Parameters(1e-4, 1e8, 1e9, 1e-5, 2e9)
MB = 1_000_000


def layers(*megabytes: float) -> list[Layer]:
    """Of equal work, so that with a backward pass of as many seconds each takes one."""
    return [Layer(int(size * MB / 4), 1) for size in megabytes]


def test_networks_have_the_parameters_of_the_papers() -> None:
    counts = {name: sum(layer.parameters for layer in make()) for name, make in NETWORKS.items()}
    # Trainable parameters of torchvision's resnet101 and keras.applications' other two.
    assert counts == {"resnet101": 44_549_160, "inception_v3": 23_817_352, "vgg16": 138_357_544}
    work = {name: sum(layer.work for layer in make()) / 1e9 for name, make in NETWORKS.items()}
    assert work == pytest.approx({"resnet101": 7.8, "inception_v3": 5.7, "vgg16": 15.5}, rel=0.01)
    assert sum(layer.parameters for layer in uniform(1003, 50)) == 1003


@pytest.mark.job
@pytest.mark.slow
def test_networks_are_those_of_keras() -> None:
    """The two that keras.applications has in the papers' form, layer by layer in any order."""
    keras = pytest.importorskip("keras")
    for name, make in (("vgg16", keras.applications.VGG16),
                       ("inception_v3", keras.applications.InceptionV3)):  # fmt: skip
        model = make(weights=None)
        # A kernel, and the bias or the offset of its normalization: one for each filter.
        shapes = [w.shape for w in model.trainable_variables if len(w.shape) > 1]
        sizes = sorted(shape.num_elements() + shape[-1] for shape in shapes)
        assert sorted(layer.parameters for layer in NETWORKS[name]()) == sizes
        assert sum(sizes) == sum(w.shape.num_elements() for w in model.trainable_variables)


def test_a_step_by_hand() -> None:
    # A step of 6 s: 2 s forward, 4 s backward, a second per layer, a bucket per layer, the last
    # layer's 1 s after the backward pass has begun.
    work = Workload(layers(1, 1, 1, 1), 6.0, bucket=MB, first_bucket=MB)
    # Each bucket needs half a second: three are done in time, the last one is added to the end.
    assert step(work, lambda _: 0.5).total == pytest.approx(6.5)
    # 2 s each: the first leaves at 1 s, then the link is busy.
    assert step(work, lambda _: 2.0).total == pytest.approx(2 + 1 + 4 * 2)
    # Half of the speed is lost meanwhile: the link is free at 1.5 s, 0.25 s of computing are done
    # of the next second, and so on, three times.
    slowed = Workload(work.layers, 6.0, MB, MB, contention=0.5)
    prediction = step(slowed, lambda _: 0.5)
    assert prediction.total == pytest.approx(6 + 3 * 0.25 + 0.5)
    assert prediction.communicate == pytest.approx(2.0)
    assert prediction.efficiency == pytest.approx(6 / 7.25)
    # Without overlap everything is added.
    after = Workload(work.layers, 6.0, MB, MB, overlap=False)
    assert step(after, lambda _: 0.5).total == pytest.approx(8.0)
    # Nothing to wait for.
    assert step(work, lambda _: 0.0).efficiency == pytest.approx(1.0)


def test_the_last_layers_leave_first() -> None:
    sizes: list[float] = []

    def allreduce(nbytes: float) -> float:
        sizes.append(nbytes)
        return 0.0

    step(Workload(layers(1, 2, 3, 4), 6.0, bucket=5 * MB, first_bucket=5 * MB), allreduce)
    assert sizes == [4 * MB, 5 * MB, 1 * MB]


def test_more_ranks_and_slower_links_are_never_better() -> None:
    work = published.workload("vgg16")
    for algorithm in cost_model.ALGORITHMS:
        ranks = [1, 4, 8, 16, 64, 512, 4096, 10000]
        efficiencies = [predict(work, SLOW, n, 4, algorithm).efficiency for n in ranks]
        assert efficiencies == sorted(efficiencies, reverse=True), algorithm
        assert 0 < efficiencies[-1] < efficiencies[0] == 1
    with pytest.raises(ValueError, match="expected a multiple of 4 ranks per host, .*received 6"):
        predict(work, SLOW, 6, 4)


def test_resnet_101_on_thousands_of_ranks() -> None:
    """With the defaults; halving and doubling, and the size of buckets, keep the latencies low."""
    work = published.workload("resnet101")
    work = replace(work, bucket=None, first_bucket=1 << 20)
    efficiencies = [predict(work, published.parameters(), n, 4).efficiency for n in (4096, 10000)]
    assert efficiencies[0] > 0.85
    assert efficiencies[1] > 0.75


def test_published_figures_are_reproduced() -> None:
    """Horovod's 90%, 90% and 68% on 512 GPUs, and those of 16 and 128, within 5 points."""
    comparisons = published.compare()
    assert len(comparisons) == 9
    off = {
        (comparison.gpus, comparison.model): comparison.predicted.efficiency - comparison.published
        for comparison in comparisons
    }
    assert all(abs(difference) <= 0.05 for difference in off.values()), off
    assert all(comparison.within for comparison in comparisons)
    assert abs(off[512, "vgg16"]) < 0.02


def test_the_assumed_numbers_are_the_nearest_of_the_grid() -> None:
    numbers = published.EFFICIENCY, published.LATENCY, published.CONTENTION
    assert published.search() == pytest.approx(numbers)


@pytest.mark.parametrize("model", ["resnet101", "inception_v3"])
def test_a_model_that_was_left_out_is_predicted(model: str) -> None:
    comparisons = published.compare(*published.search(without=model))
    of_model = [comparison for comparison in comparisons if comparison.model == model]
    assert len(of_model) == 3
    assert all(comparison.within for comparison in of_model)


def rows_of(hosts: tuple[int, ...] = (2, 4, 8), off: float = 1.0) -> dict[str, Any]:
    """A file of times that are `off` times what is predicted."""
    cases = [(n, local, size, name) for n in hosts for local, size, name in (
        (1, 32 << 20, "ring"), (2, 32 << 20, "hierarchical"), (1, 1024, "auto"))]  # fmt: skip
    return {
        "parameters": vars(SLOW),
        "rows": [
            {"hosts": n, "ranks_per_host": local, "bytes": size, "algorithm": name,
             "seconds": off * cost_model.allreduce_seconds(SLOW, size, n, local, name),
             "note": "ignored"}
            for n, local, size, name in cases
        ],
    }  # fmt: skip


def check(data: Any, folder: Path) -> tuple[str, bool]:
    path = folder / "measured.json"
    path.write_text(json.dumps(data))
    return measured.check(path)


@pytest.mark.parametrize(("off", "good"), [(1, True), (1.13, True), (0.88, True), (1.2, False),
                                           (0.8, False)])  # fmt: skip
def test_measured_times(off: float, good: bool, tmp_path: Path) -> None:
    text, within = check(rows_of(off=off), tmp_path)
    assert within is good
    assert text.count("yes") == (9 if good else 0)


def test_one_row_that_is_off_is_enough(tmp_path: Path) -> None:
    data = rows_of()
    data["rows"][4]["seconds"] *= 1.5
    assert not check(data, tmp_path)[1]
    # Unless that row was measured on another link.
    slower = {**vars(SLOW), "bandwidth": SLOW.bandwidth / 1.5}
    data["rows"][4]["parameters"] = slower
    assert check(data, tmp_path)[1]


def test_hosts_that_were_not_measured_are_named(tmp_path: Path) -> None:
    text, good = check(rows_of((2, 4)), tmp_path)
    assert not good
    assert text.endswith("not measured: 8 hosts")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": 0}, "row 0: seconds: expected more than 0, received 0"),
        ({"hosts": 2.5}, "row 0: hosts: expected int, received 2.5"),
        ({"bytes": None}, "row 0: bytes: expected int, received None"),
        ({"algorithm": "tree"}, "row 0: `algorithm`: expected auto, .* received 'tree'"),
        ({"parameters": {}}, "row 0: parameters: missing latency"),
    ],
)
def test_files_that_cannot_be_read(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = rows_of()
    data["rows"][0].update(change)
    with pytest.raises(ValueError, match=message):
        check(data, tmp_path)
    contents: list[Any] = [[], {"rows": 1}]
    for content in contents:
        with pytest.raises(ValueError, match="expected an object with a list `rows`"):
            check(content, tmp_path)
    with pytest.raises(ValueError, match="expected JSON with measured times"):
        measured.check(tmp_path / "none.json")


def test_check_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "measured.json"
    for off, code in ((1.0, 0), (1.3, 1)):
        path.write_text(json.dumps(rows_of(off=off)))
        assert simulate.main(["--check", str(path)]) == code
        assert "within 15%" in capsys.readouterr().out
    path.write_text("{}")
    assert simulate.main(["--check", str(path)]) == 2
    assert "expected an object with a list `rows`" in capsys.readouterr().err


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--ranks", "1,8,512,10000"]) == 0
    text = capsys.readouterr().out
    assert "| vgg16        | 10000   | 2500    |" in text
    assert "| vgg16        | 512    | 68.0%       |" in text


@pytest.mark.slow
def test_the_files(tmp_path: Path) -> None:
    output = tmp_path / "simulated"
    assert simulate.main(["--output", str(output), "--ranks", "1,8,512,10000"]) == 0
    data = json.loads(output.with_suffix(".json").read_text())
    assert len(data["rows"]) == 3 * 4 * 4  # models, numbers of ranks, algorithms
    assert len(data["published"]) == 9
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost_model.save(tmp_path / "model.json", SLOW)
    words = ["--parameters", "1e6", "--step", "0.1", "--ranks", "1,2", "--ranks-per-host", "1",
           "--algorithms", "ring", "--no-overlap", "--cost-model",
           str(tmp_path / "model.json")]  # fmt: skip
    assert simulate.main(words) == 0
    # 4 MB in one bucket of 1 MiB and others of up to 8: the ring's bytes at 100 MB/s, and latency.
    line = next(li for li in capsys.readouterr().out.splitlines() if li.startswith("| 1 M param")
                and "| 2 " in li)  # fmt: skip
    assert "| 40.2 ms" in line
    for words, message in (
        (["--parameters", "1e6"], "needs --step"),
        (["--models", "lenet"], "expected resnet101, inception_v3, vgg16, received"),
        (["--ranks", "6"], "expected a multiple of 4 ranks"),
        (["--algorithms", "tree"], "--algorithms: expected"),
        (["--contention", "1"], "--contention: expected 0 to below 1"),
        (["--cost-model", "none.json"], "none.json: expected a file"),
    ):
        assert simulate.main(words) == 2
        assert message in capsys.readouterr().err
