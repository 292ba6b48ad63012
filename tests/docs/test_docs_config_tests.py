"""The tests that docs/config-tests.md shows are run as a group would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import named_files
from runs import environment

PAGE = "docs/config-tests.md"


@pytest.mark.slow
def test_the_shown_tests_pass(tmp_path: Path) -> None:
    files = named_files(PAGE)
    modules = {name for name in files if name.endswith(".py")}
    assert modules == {"conftest.py", "test_my_experiment.py", "test_mistakes.py"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"configs", "__pycache__", *modules}
