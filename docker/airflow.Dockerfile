# Airflow with the provider. The workers need no Java: staging runs in Spark Connect.
FROM apache/airflow:3.3.2-python3.11
COPY --chown=airflow:root pyproject.toml README.md LICENSE constraints.txt /project/
COPY --chown=airflow:root provider /project/provider
COPY --chown=airflow:root docs /project/docs
RUN pip install --no-cache-dir -c /project/constraints.txt "/project[all]"
ENV AIRFLOW__CORE__DAGS_FOLDER=/project/dags
WORKDIR /project
