"""Kafka's own command line tools, run as an operator runs them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from stack.jars import Jars

CLASSES = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}


def run(jars: Jars, bootstrap: str, command: Sequence[str]) -> list[str]:
    """What a tool prints, line by line."""
    tool, *rest = command
    return run_as_pasted(jars, [tool, "--bootstrap-server", bootstrap, *rest])


def run_as_pasted(jars: Jars, command: Sequence[str]) -> list[str]:
    """The same, of a command that names the brokers itself."""
    tool, *rest = command
    return _printed([*_java(jars, tool), *rest])


def run_in_shell(jars: Jars, folder: Path, text: str) -> list[str]:
    """What a command of the docs prints in a shell that finds the tools it names. ``folder``: a new one, for these."""
    folder.mkdir()
    for tool in CLASSES:
        (folder / tool).write_text(f'#!/bin/sh\nexec {shlex.join(_java(jars, tool))} "$@"\n')
        (folder / tool).chmod(0o755)
    return _printed(["bash", "-c", text], {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})


def _java(jars: Jars, tool: str) -> list[str]:
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", jars.classpath("broker"), CLASSES[tool]]


def _printed(argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def in_text(text: str, tool: str) -> list[str]:
    """The call of a tool that a remedy tells to make, between backquotes, as it is pasted."""
    named = re.search(rf"`({re.escape(tool)} [^`]*)`", text)
    assert named, text
    return shlex.split(named[1])
