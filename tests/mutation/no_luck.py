"""A plugin for pytest: a mutant must be noticed by the cases that tests name, not by those that Hypothesis draws.

Else the gate would fail in the runs that draw no such case.
"""

from hypothesis import Phase, settings

settings.register_profile("no luck", phases=[Phase.explicit])
settings.load_profile("no luck")
