"""The data manager's faces: `Recording` (rollouts), `Leasing` (trainers), `Insight` (to look), `DataManager` (all)."""
