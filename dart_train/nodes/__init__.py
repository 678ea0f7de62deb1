"""A run on the nodes of a Ray cluster: the processes of one machine, each in an actor on a node that Ray chooses.

Ray schedules, notices what is lost and carries what processes print; the rest of a run does not know of Ray. Importing
`run_keys`, `node_facts` and `program_host` needs no Ray.
"""
