"""A small part of `make fuzz`, always the same."""

import pytest

from benchmarks import fuzz_config, fuzz_files
from traces_jax.host import errors


def test_damaged_files_are_read_or_refused_in_a_sentence():
    """Of every format some changed bytes and some places to cut."""
    some = [case for name in fuzz_files.FORMATS for case in fuzz_files.cases(name, flips=15, seed=1, cuts=15)]
    found = list(fuzz_files.results(some))
    assert [result.case for result in found] == some
    assert not [result for result in found if result.problem]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (errors.UserError("One sentence."), ""),
        (errors.UserError("Two.\nLines."), "said 'Two."),
        (errors.UserError("x" * 1000), "said 'xxx"),
        (KeyError("a"), "KeyError in test_fuzz.py:"),
        (MemoryError(), "MemoryError in test_fuzz.py:"),
    ],
)
def test_what_counts_as_a_problem(error, problem, tmp_path):
    def read(path):
        raise error

    found = fuzz_files._problem(fuzz_files.Format("a", lambda folder: b"", read), tmp_path / "a")
    assert found.startswith(problem) and bool(found) == bool(problem)


def test_fuzzed_trees_are_refused_in_a_sentence_or_built():
    report = fuzz_config.examine(fuzz_config.trees(100, seed=1))
    assert not [outcome for outcome in report.wrong if outcome.startswith("crashed")]
    assert min(report.outcomes["built"], report.outcomes["refused"]) > 20
