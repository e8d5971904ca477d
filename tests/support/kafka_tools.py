"""Kafka's own command line tools, run as an operator runs them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from stack.jars import Jars

CLASSES = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}


def run(jars: Jars, bootstrap: str, command: Sequence[str]) -> list[str]:
    """What a tool prints, line by line."""
    tool, *rest = command
    argv = ["java", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", jars.classpath("broker"), CLASSES[tool]]
    done = subprocess.run([*argv, "--bootstrap-server", bootstrap, *rest], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def in_text(text: str, tool: str) -> list[str]:
    """The call of a tool that a remedy tells to make, up to the end of its sentence."""
    _, found, rest = text.partition(f"{tool} ")
    assert found, text
    words = [tool, *rest.split()]
    end = next(number for number, word in enumerate(words[1:], 1) if word.endswith((".", ";")))
    return [*words[:end], words[end].rstrip(".;")]
