"""Loads the test plugin; see tests/plugin/__init__.py and CONTRIBUTING.md."""

pytest_plugins = [
    "tests.plugin.selection",
    "tests.plugin.deadline",
    "tests.plugin.fixtures",
    "tests.plugin.ranks",
]
