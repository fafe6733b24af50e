#!/usr/bin/env bash
# Start N agents for a base, a GPU each:   ./start_agent.sh 4 ./base
# Stop them:                               python agent.py stop ./base
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ -z "${VIRTUAL_ENV:-}" ] && [ -x "$here/.venv/bin/python" ]; then
  python=$here/.venv/bin/python
fi
if [ $# -lt 2 ]; then
  echo "usage: start_agent.sh N BASE    (N agents for the folder BASE, a GPU each)" >&2
  exit 2
fi
exec "$python" "$here/agent.py" start "$@"
