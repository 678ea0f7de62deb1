"""What a task is and where tasks come from: `Task`, `Scenario`, parameters drawn by a seed, and suites by name.

`registry` is what other rooms ask for tasks and scenarios.
"""
