"""The processes of a run on a Ray cluster: each runs in an actor, on a node that Ray chooses.

Ray schedules, detects lost nodes and carries the output of processes; no other part of a run knows about Ray. Importing
`run_keys`, `node_facts` and `program_host` does not need Ray.
"""
