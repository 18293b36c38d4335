"""People rate pairs: study, files, agreement, page."""
