"""The worked example of docs/write-your-own-sink.md passes the suite that it tells its readers to run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "write-your-own-sink.md"
MANY = "    many = 20_000\n"
"""The example has nothing that grows with the rows but their file."""


def written(folder: Path) -> list[str]:
    """The page's files, each named in its first line, written to ``folder``; their names."""
    blocks = re.findall(r"^```python\n(\"\"\"(\w+\.py)\"\"\"\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for text, name in blocks:
        (folder / name).write_text(text.replace("(SinkConformance):\n", f"(SinkConformance):\n{MANY}"))
    return [name for _, name in blocks]


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(folder),
    ]
    return subprocess.run([*command, str(folder)], cwd=folder, capture_output=True, text=True)


def test_the_worked_example_passes_the_suite(tmp_path: Path) -> None:
    assert written(tmp_path) == ["folder_sink.py", "test_folder_sink.py"]
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^2[0-9] passed", done.stdout, re.MULTILINE), done.stdout


def test_the_suite_finds_an_example_that_forgets_to_compare_the_marker(tmp_path: Path) -> None:
    written(tmp_path)
    example = tmp_path / "folder_sink.py"
    broken = example.read_text().replace("if shown == attempt.previous:", "if shown != txn:")
    assert broken != example.read_text()
    example.write_text(broken)
    done = run(tmp_path)
    assert done.returncode == 1
    assert "test_an_epoch_after_a_gap_is_refused" in done.stdout
