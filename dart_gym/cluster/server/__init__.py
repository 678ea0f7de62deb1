"""The server's side of the environment cluster: connections, sessions, operations, tokens, metrics and the live view.

`ClusterServer` and `ServerSettings` are the face; `dart-gym serve` runs it.
"""
