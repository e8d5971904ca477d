"""Sinks that begin with earlier epochs, and waived commits that may land beside their rows."""
