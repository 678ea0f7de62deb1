"""Recorded episodes in other people's layouts: Hugging Face data sets, OSWorld's results."""
