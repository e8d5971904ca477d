"""The commands that let Spark's Python workers start quickly, as the page has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stack.jars import pyspark_home

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.mark.proof
def test_the_commands_of_the_page_leave_a_folder_from_which_compiled_modules_are_imported(tmp_path: Path) -> None:
    lib = tmp_path / "python" / "lib"
    shutil.copytree(pyspark_home() / "python" / "lib", lib)
    section = PAGE.read_text().split("### Python workers that start quickly")[1]
    [commands] = re.findall(r"^```\n(.*?)^```", section.split("\n##")[0], re.DOTALL | re.MULTILINE)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"PATH": path, "SPARK_HOME": str(tmp_path)}
    subprocess.run(["sh", "-ec", commands], env=env, check=True)
    # the path of a worker, as org.apache.spark.api.python.PythonUtils makes it
    env["PYTHONPATH"] = os.pathsep.join([str(lib / "pyspark.zip"), *map(str, lib.glob("py4j-*.zip"))])
    asked = [sys.executable, "-c", "import pyspark.worker as module; print(module.__cached__)"]
    compiled = Path(subprocess.run(asked, env=env, check=True, capture_output=True, text=True).stdout.strip())
    assert compiled.is_relative_to(lib)
    assert compiled.is_file()
