"""The mathematics is that of the peers, anemoi-models 0.19, anemoi-graphs 0.9, anemoi-training 0.17: ``peer_*.py``.

They run in a process that has the peers, so that nothing else imports them unasked: together, as the peers take seconds
to import, and those that measure alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_site import KERNELS
from library_site import LibrarySite, pytest_arguments, run_python
from peer_site import PEERS, run_tests

BENCHMARK = Path(__file__).with_name("peer_training_step.py")
FILES = sorted(set(Path(__file__).parent.glob("peer_*.py")) - {BENCHMARK})


def test_all_is_as_the_peer_has_it(tmp_path: Path) -> None:
    run_tests(FILES[0], tmp_path, *map(str, FILES[1:]))


@pytest.mark.slow
def test_steps_are_as_the_peer_takes_them(tmp_path: Path) -> None:
    run_tests(BENCHMARK, tmp_path)


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_of_the_peer(tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name("imported_run.py"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["models_of_checkpoints", "training_classes"])
def test_as_more_of_the_peers(name: str, tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name(f"{name}.py"), tmp_path)


@pytest.mark.slow
def test_the_triton_kernel_of_the_peer_as_it_is_measured(tmp_path: Path) -> None:
    arguments = pytest_arguments(Path(__file__).with_name("interpreted_peer_attention.py"))
    variables = {"TRITON_INTERPRET": "1"}
    run_python("-m", "interpreted", *arguments, folder=tmp_path, sites=[PEERS, KERNELS], variables=variables)


def test_a_failure_there_is_a_failure_here(tmp_path: Path) -> None:
    file = tmp_path / "peer_wrong.py"
    file.write_text("import anemoi.models\n\n\ndef test_it():\n    assert 1 + 1 == 3\n")
    with pytest.raises(pytest.fail.Exception, match=r"ended with status 1[\s\S]*assert \(?1 \+ 1\)? == 3"):
        run_tests(file, tmp_path)


def test_without_the_libraries_a_test_fails_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETESIAN_TEST_OTHERS", str(tmp_path))
    (tmp_path / "one").mkdir()
    with pytest.raises(pytest.fail.Exception) as failure:
        LibrarySite("others", ("one", "two/three")).folder()
    assert f"{tmp_path} lacks two/three: run `make others`, or set ETESIAN_TEST_OTHERS" in str(failure.value)
