"""init, shutdown and the numbers of a rank; what several ranks need is in collectives/."""

from __future__ import annotations

import os

import pytest

import ringar
from ringar.job import place

VARIABLES = {
    "RINGAR_RANK": "1",
    "RINGAR_SIZE": "3",
    "RINGAR_LOCAL_RANK": "1",
    "RINGAR_LOCAL_SIZE": "2",
    "RINGAR_CROSS_RANK": "0",
    "RINGAR_CROSS_SIZE": "2",
    "RINGAR_SEGMENT_FD": "7",
    "RINGAR_DEADLINE": "12.5",
    "RINGAR_STALL_WARNING": "3",
    "RINGAR_START_TIMEOUT": "4",
}


def test_configuration_from_the_environment() -> None:
    config = place.read_config(VARIABLES, None, None, None)
    assert (config.rank, config.size) == (1, 3)
    assert (config.local_rank, config.local_size) == (1, 2)
    assert (config.cross_rank, config.cross_size) == (0, 2)
    assert config.segment_fd == 7
    assert (config.deadline, config.stall_warning, config.start_timeout) == (12.5, 3.0, 4.0)


def test_arguments_come_before_the_environment() -> None:
    config = place.read_config(VARIABLES, 1.0, 2.0, 3.0)
    assert (config.deadline, config.stall_warning, config.start_timeout) == (1.0, 2.0, 3.0)


def test_a_job_of_one_rank_without_a_launcher() -> None:
    config = place.read_config({}, None, None, None)
    assert (config.rank, config.size, config.local_size, config.cross_size) == (0, 1, 1, 1)
    assert config.deadline == 600.0


@pytest.mark.parametrize("name", ["RINGAR_RANK", "RINGAR_SIZE", "RINGAR_SEGMENT_FD"])
def test_variables_must_be_whole_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number. Received: 'two'"):
        place.read_config({**VARIABLES, name: "two"}, None, None, None)


@pytest.mark.parametrize("rank", ["3", "-1"])
def test_the_rank_must_be_one_of_the_job(rank: str) -> None:
    with pytest.raises(ValueError, match=rf"RINGAR_RANK={rank}, RINGAR_SIZE=3"):
        place.read_config({**VARIABLES, "RINGAR_RANK": rank}, None, None, None)


@pytest.mark.parametrize("value", ["0", "-3", "nan", "soon"])
def test_times_must_be_numbers_of_seconds(value: str) -> None:
    with pytest.raises(ValueError, match="seconds"):
        place.read_config({**VARIABLES, "RINGAR_DEADLINE": value}, None, None, None)
    if value != "soon":
        with pytest.raises(ValueError, match="deadline must be more than 0 seconds"):
            place.read_config(VARIABLES, float(value), None, None)


def test_the_numbers_of_this_rank(initialized: None, rank: int, size: int) -> None:
    assert ringar.rank() == rank == ringar.global_process_set.rank()
    assert ringar.size() == size == ringar.global_process_set.size()
    assert ringar.local_rank() == rank
    assert ringar.local_size() == size
    assert ringar.cross_rank() == 0
    assert ringar.cross_size() == 1
    assert ringar.global_process_set.included()
    assert os.environ.get("RINGAR_RANK", "0") == str(rank)
