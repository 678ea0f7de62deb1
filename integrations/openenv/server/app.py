"""OpenEnv's server over our desktops: `server.app:app`, as openenv.yaml names it.

Environment variables: DART_GYM_URL and DART_GYM_TOKEN name a cluster; without one `server` starts its own, of DESKTOPS
desktops (4), kept as ISOLATION says (bwrap). ENABLE_WEB_INTERFACE=true adds OpenEnv's page.
"""

from __future__ import annotations

import argparse
import os

import uvicorn
from dart_gym_openenv import DesktopAction, DesktopEnvironment, DesktopObservation
from openenv.core.env_server.http_server import create_app

from dart_gym.cluster.client.private_cluster import LocalCluster
from dart_gym.envs.cluster_link import background_loop

sessions = int(os.environ.get("DESKTOPS", "4"))
app = create_app(
    DesktopEnvironment, DesktopAction, DesktopObservation, env_name="dart_gym_desktop", max_concurrent_envs=sessions
)


def main() -> None:
    """Serve; `--host` and `--port` say where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    cluster = None
    if "DART_GYM_URL" not in os.environ:
        cluster = LocalCluster(sessions, sandbox=os.environ.get("ISOLATION"))
        background_loop().run(cluster.start)
        os.environ["DART_GYM_URL"] = cluster.url
    try:
        uvicorn.run(app, host=options.host, port=options.port)
    finally:
        if cluster is not None:
            background_loop().run(cluster.stop)


if __name__ == "__main__":
    main()
