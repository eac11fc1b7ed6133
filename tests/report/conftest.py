"""One made-up study, reported once for all tests that only read it."""

import pytest
from made_up_study import build_report, study


@pytest.fixture(scope="module", autouse=True)
def figures():
    """Figures are drawn for real here."""


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """The directory of a report and what `build_report` returned."""
    directory = tmp_path_factory.mktemp("report")
    return directory, build_report(study(), directory, resamples=30)
