"""One episode: the loop that plays it, what it leaves behind, and how that lies on disk."""
