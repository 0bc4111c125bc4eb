"""The order in which the files of tests run."""

import pytest

from tests.conftest import order_files


class FakeTest:
    """Stands in the place of a test of pytest."""

    def __init__(self, name: str, *markers: str):
        self.name = name
        self.markers = markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def names(files: list[list[FakeTest]]) -> list[str]:
    return [file[0].name for file in files]


def test_order_files_alternates_long_files():
    files = [
        [FakeTest("short")],
        [FakeTest("parallel 1", "slow", "several_processes")],
        [FakeTest("parallel 2", "slow", "several_processes")],
        [FakeTest("long 1", "long")],
        [FakeTest("long 2", "slow")],
        [FakeTest("long 3", "long")],
    ]
    expected = ["parallel 1", "long 1", "parallel 2", "long 2", "long 3", "short"]
    assert names(order_files(files)) == expected


def test_order_files_looks_at_every_test_of_a_file():
    mixed = [FakeTest("mixed"), FakeTest("one long test", "long")]
    assert names(order_files([[FakeTest("short")], mixed])) == ["mixed", "short"]


def test_markers_are_declared(pytestconfig: pytest.Config):
    declared = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert {"long", "several_processes", "slow"} <= declared
