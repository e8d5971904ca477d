"""Which Airflow run works on which epoch, and which one waits for another."""
