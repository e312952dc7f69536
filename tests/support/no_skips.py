"""A pytest plugin: a test that neither ran nor failed is a failure, so that no green run hides one."""

from collections.abc import Generator
from typing import TypeVar

import pytest

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

ReportT = TypeVar("ReportT", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _failed_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _failed_if_skipped((yield))


def _failed_if_skipped(report: ReportT) -> ReportT:
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"Skips and expected failures are not used here: {report.longrepr}"
    return report
