"""Tasks: what is asked, how a desktop is prepared for it, and how the outcome is scored."""
