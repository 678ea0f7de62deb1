"""The client's side of the environment cluster: find servers, open sessions, or start a private server on this machine.

`ClusterClient` and `ClientSession` are the face.
"""
