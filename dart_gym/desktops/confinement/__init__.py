"""How programs that nobody trusts are held: namespaces, users, limits, a filter of system calls, removal.

Desktops and evaluations use it alike, so it knows neither. `bubblewrap` has the arguments and the start,
`first_process` runs inside, and each of the others is one part of it.
"""
