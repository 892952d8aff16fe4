"""The mathematics of checkpoint planning. Pure functions; units stand in the names; each formula names its source."""
