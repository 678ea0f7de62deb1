"""The data manager's faces: `DataManager` (record, lease), `RunReader` (look), `LeasedGroups` (any trainer)."""
