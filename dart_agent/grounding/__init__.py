"""Finding the place of an element that is described in words: grounders, their training, and sets to score them on."""
