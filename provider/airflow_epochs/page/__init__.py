"""The Epochs page: what the ledgers say, in Airflow's own UI."""
