"""What sinks and pipelines have written under other names than those that the DAG has today."""
