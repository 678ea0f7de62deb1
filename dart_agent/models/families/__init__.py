"""What each family of models needs: one file a family, and the table of them (`family_table`). No torch."""
