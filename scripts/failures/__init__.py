"""How every command of the three programs ends when something is wrong: `python -m scripts.failures` writes the page.

Rows are the commands that the applications have, columns are situations; each cell is the real program in a process
of its own, or a stated reason why the situation cannot be.
"""
