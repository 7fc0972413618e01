"""Scheduled model parallelism (STRADS, Kim et al., EuroSys 2016).

Ranks update different variables of one model at once. A scheduler chooses, round by round,
variables that change most and depend on each other little, and shares them out to the ranks.
Users derive from `Problem`, `run` runs it, and `Lasso` and `MatrixFactorization` are two such
problems.
"""

from ringar.research.scheduled.balance import balance
from ringar.research.scheduled.factorization import MatrixFactorization
from ringar.research.scheduled.lasso import Lasso
from ringar.research.scheduled.problem import Problem
from ringar.research.scheduled.rounds import History, Progress, run
from ringar.research.scheduled.schedulers import Dynamic, Random, RoundRobin, Scheduler

__all__ = [
    "Dynamic",
    "History",
    "Lasso",
    "MatrixFactorization",
    "Problem",
    "Progress",
    "Random",
    "RoundRobin",
    "Scheduler",
    "balance",
    "run",
]
