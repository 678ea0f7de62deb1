"""The server's side of the environment cluster: connections, sessions, operations, tokens, metrics and the live view.

Others import `cluster_server` and `server_settings`; `dart-gym serve` runs it.
"""
