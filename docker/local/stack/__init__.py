"""The local stack: Kafka, Spark (Connect, standalone, YARN), S3 and Airflow as plain processes, no Docker.

Every server is a context manager: on loopback only, on free ports chosen by the system, with its data and its
log in a given folder, ready when a real request has been answered, gone with everything it started at the end.
"""
