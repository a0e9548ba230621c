"""Parts of a report that only volumes need: pages of cases, slices, regions and grids."""
