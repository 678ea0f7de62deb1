"""What is done with episodes that have ended and before they are recorded, beside the play."""
