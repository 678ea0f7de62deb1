"""What every benchmark gives: named numbers, where they were measured, the aims they are held against."""
