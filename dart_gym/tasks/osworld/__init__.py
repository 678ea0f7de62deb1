"""Tasks in OSWorld's format in action: `osworld_scenario` prepares and scores them, `oracle_script` solves them."""
