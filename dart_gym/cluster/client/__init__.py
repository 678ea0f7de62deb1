"""The client's side of the environment cluster: find servers, open sessions, or start a private server on this machine.

Others import `cluster_client` and `cluster_servers` (the settings).
"""
