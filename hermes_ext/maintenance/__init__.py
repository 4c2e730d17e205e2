"""Doctor, repair, backup, restore, scrub, reindex, encryption and migrate."""
