"""``airflow epochs rebuild``: where a pipeline goes on whose ledger was lost, or restored from an older copy.

Every sink stores transaction and end offsets with its commit. So the sinks know where the pipeline is, if they all show
the same transaction. The caller makes a plan (``planning``), shows it in words (``wording``), asks, and lets it be
carried out (``recording``). A plan answers four questions, one module for each:

1. What do the sinks show, and is the ledger behind them (``evidence``)?
2. Which transaction do they all show (``transaction``)?
3. Is that enough for the next epoch (``requirements``)?
4. Which input had the newest epoch (``newest_input``)? The next one goes on behind it.
"""
