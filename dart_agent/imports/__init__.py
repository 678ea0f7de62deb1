"""Recorded episodes from other people's layouts: OSWorld's results, AgentNet, chat JSONL."""
