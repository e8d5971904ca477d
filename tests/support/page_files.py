"""A page of ours as one file, with its style within: a browser shows it without a server."""

from __future__ import annotations

import re

from airflow_epochs.page.app import STATIC

SCRIPTS = ("uPlot.iife.min.js", "epochs.js")


def alone(html: str, theme: str) -> str:
    """The page without scripts."""
    style = (STATIC / "uPlot.min.css").read_text() + (STATIC / "epochs.css").read_text()
    html = re.sub(r'<script(?! type="application/json").*?</script>|<link.*?>', "", html, flags=re.DOTALL)
    return html.replace("</head>", f"<style>{style}</style></head>").replace("<html", f'<html class="{theme}"')


def drawn(html: str, theme: str) -> str:
    """The page with the scripts that draw its charts. Nobody answers what they ask for."""
    scripts = "".join(f"<script>{(STATIC / name).read_text()}</script>" for name in SCRIPTS)
    return alone(html, theme).replace("</body>", f"{scripts}</body>")
