"""The report of a run: `gather` reads the run directory, `plots` and `page` make a page for people of it."""
