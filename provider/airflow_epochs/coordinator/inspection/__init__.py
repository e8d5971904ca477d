"""What looks at a pipeline and its source: no epoch is opened, nothing is decided, nothing of a sink changes."""
