"""OSWorld's evaluation: getters fetch what is on the desktop, metrics compare it, rules combine the scores."""
