"""Parts of a report that only whole slides need: their pages, heat maps, tiles and losses."""
