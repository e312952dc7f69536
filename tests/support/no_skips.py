"""A pytest plugin: a skipped test is a failure, so that no successful run hides one.

A test of a foreign suite may be expected to fail: strictly, and with a reason.
"""

from collections.abc import Generator
from typing import TypeVar

import pytest

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

ReportT = TypeVar("ReportT", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return report if _is_deviation(item, report) else _failed_if_skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _failed_if_skipped((yield))


def _is_deviation(item: pytest.Item, report: pytest.TestReport) -> bool:
    marks = [mark.kwargs for mark in item.iter_markers("xfail")]
    is_declared = any(mark.get("strict") and mark.get("reason") for mark in marks)
    return is_declared and hasattr(report, "wasxfail")


def _failed_if_skipped(report: ReportT) -> ReportT:
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"Skips and loose expected failures are not used here: {report.longrepr}"
    return report
