"""Screens of applications as elements, the explorer that walks them, and the sets for grounders that a walk leaves."""
