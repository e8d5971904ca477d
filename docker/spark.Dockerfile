# Spark Connect with the jars of docker/local/ivy.xml, fetched when the image is built. Python as in the Airflow
# image: UDFs are pickled there and run here.
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
# The user of compose.yaml. Hadoop asks the system for its name, and does not start without one.
RUN useradd --uid 50000 --gid 0 --no-create-home --home-dir /tmp spark
COPY constraints.txt /stack/
# Without python/lib, Python workers import the pyspark that is installed; its pyspark.zip they would compile each time.
RUN pip install --no-cache-dir -c /stack/constraints.txt "pyspark[connect]" psutil typing-extensions \
    && rm -r "$(python -c 'import pyspark; print(*pyspark.__path__)')/python/lib"
COPY docker/local /stack/local
ENV EPOCHS_CACHE=/stack/cache PYTHONPATH=/stack/local
RUN python -c "from pathlib import Path; from stack import jars, spark; \
    spark.write_conf(Path('/stack/conf'), spark.settings(jars.fetch('spark')))" \
    && chmod -R a+rX /stack/conf
ENV SPARK_CONF_DIR=/stack/conf
CMD ["spark-submit", "--master", "local[2]", "--driver-memory", "2g", \
     "--conf", "spark.connect.grpc.binding.address=127.0.0.1", \
     "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
