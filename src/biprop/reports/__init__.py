"""Reports: what a run showed, for terminals, issues, stand-alone scripts and machines."""
