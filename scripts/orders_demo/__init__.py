"""The parts of ``make demo``; the end-to-end test uses them too."""
