"""For every test: Hypothesis profiles, and at the end of a whole run the rules of docs/contract.md without a test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, settings

from tests.support.rules import contract_rules

# Sanitized kernels run several times slower; the same properties, fewer examples.
settings.register_profile("default", deadline=None)
settings.register_profile("asan", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("IOP_TEST_PROFILE", "default"))

# A shell without job control starts background jobs with SIGINT ignored, and nohup with SIGHUP; the programs that tests
# start would inherit that.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

_CARRIED: pytest.StashKey[set[str]] = pytest.StashKey()


def pytest_collection_modifyitems(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Collects the rules that tests carry, before ``-k`` or ``-m`` drops some of them."""
    carried = config.stash.setdefault(_CARRIED, set())
    for item in items:
        for marker in item.iter_markers("req"):
            carried.update(marker.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what a whole run (no paths named) leaves unproven. A report, not a failure."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    rules = contract_rules()
    carried = config.stash.get(_CARRIED, set())
    bare = [rule for rule in rules if rule not in carried]
    unknown = sorted(carried - set(rules))
    terminalreporter.section("contract")
    terminalreporter.line(f"{len(rules) - len(bare)} of {len(rules)} rules of docs/contract.md have a test")
    if bare:
        terminalreporter.line(f"no test carries: {', '.join(bare)}")
    if unknown:
        terminalreporter.line(f"carried by tests but not in the contract: {', '.join(unknown)}")
