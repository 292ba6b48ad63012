"""Datasets that come with the package, turned into stores in the user's cache folder at first use."""
