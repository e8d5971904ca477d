#!/bin/sh
# Draws the passwords and keys of compose.yaml, once, into docker/.env, which nobody else can read. To draw new ones,
# delete the data (`docker compose -f docker/compose.yaml down -v`) and the file: PostgreSQL keeps its first password.
set -eu
cd "$(dirname "$0")"
if [ -e .env ]; then
  echo "docker/.env is there already; it was left as it is." >&2
  exit 1
fi
umask 077

hex() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; }
fernet() { head -c 32 /dev/urandom | base64 | tr '+/' '-_'; }

cat > .env.new <<END
AIRFLOW_PASSWORD=$(hex 16)
POSTGRES_PASSWORD=$(hex 32)
SPARK_CONNECT_TOKEN=$(hex 32)
FERNET_KEY=$(fernet)
SECRET_KEY=$(hex 32)
JWT_SECRET=$(hex 64)
LEDGER_KEY=$(hex 32)
END
mv .env.new .env
echo "docker/.env is written. Airflow's user is admin, its password AIRFLOW_PASSWORD in that file."
